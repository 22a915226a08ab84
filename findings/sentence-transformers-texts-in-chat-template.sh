#!/bin/sh
# sentence-transformers 6.2.0 with transformers 5.23.0 and torch 2.13.0: a new SentenceTransformer over a language model
# puts every text into the tokenizer's chat template. Seen on 2026-11-29, Python 3.11, Linux x86_64.
#
# Expected: encode embeds the text that it gets. A chat template is for conversations; whether a tokenizer has one
# changes no embedding of a plain text.
# What happens: where the folder has no modules.json and its tokenizer has a chat template, each text becomes the message
# of a user in that template, and the ids of the template are pooled too. Nothing is said.
# Why it matters: base models for embeddings (Qwen3, Llama, Gemma) have chat templates. A model that is trained from one
# learns the template around texts, and a server that tokenizes the plain text has other rows for it; so has a model
# whose folder lost its template.
#
# Needs Python 3.11 to 3.13 with venv, a package index, and up to 8 GB of disk for the time it runs: torch's builds for
# Linux bring CUDA's libraries. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/chat.py" <<'EOF'
import sys
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

torch.manual_seed(0)
words = Tokenizer(WordLevel({"?": 0, "<|user|>": 1, "hello": 2, "world": 3}, unk_token="?"))
words.pre_tokenizer = WhitespaceSplit()
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
model = Qwen3Model(Qwen3Config(vocab_size=4, num_key_value_heads=2, head_dim=8, initializer_range=0.5, **sizes))
rows = {}
for name, template in (("plain", None), ("chat", "{% for m in messages %}<|user|> {{ m.content }}{% endfor %}")):
    folder = Path(sys.argv[1], name)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?", pad_token="?")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    made = SentenceTransformer(str(folder), device="cpu")
    ids = made.preprocess(["hello world"])["input_ids"][0].tolist()
    rows[name] = made.encode("hello world")
    print(f"{name}: {[tokenizer.convert_ids_to_tokens(each) for each in ids]}")
print("the same embedding:", bool(np.allclose(rows["plain"], rows["chat"], atol=1e-5)))
EOF

"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    torch==2.13.0 transformers==5.23.0 sentence-transformers==6.2.0 numpy==2.3.5
"$folder/venv/bin/python" -W ignore "$folder/chat.py" "$folder" 2> /dev/null | tee "$folder/seen"
expected="plain: ['hello', 'world']
chat: ['<|user|>', 'hello', 'world']
the same embedding: False"
printf '%s\n' "$expected" | cmp -s - "$folder/seen" || { echo "this has changed"; exit 1; }

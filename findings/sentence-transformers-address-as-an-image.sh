#!/bin/sh
# sentence-transformers 6.2.0 with transformers 5.23.0 and torch 2.13.0: a reranker of texts takes a document that is the
# address of an image for an image. Seen on 2026-11-29, Python 3.11, Linux x86_64.
#
# Expected: a CrossEncoder that knows texts alone reads each document as a text. As `infer_modality` says, a text that
# looks like the address of an image is a text where the model supports no images.
# What happens: where the chat template takes parts of contents ("structured"), `pair_to_messages` asks for the kind of
# each half without naming what the model supports. A document that is one address ending in .png, with no space, becomes
# a part of type image. A template of texts writes nothing for it: the model scores the query and an empty document.
# Why it matters: lists of links hold such documents, and for one query all get the same score, without an error. A
# server that renders the text has another score for the same pair. With a word before the address all is well.
#
# Needs Python 3.11 to 3.13 with venv, a package index, and up to 8 GB of disk for the time it runs: torch's builds for
# Linux bring CUDA's libraries. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/address.py" <<'EOF'
import sys

import torch
from sentence_transformers import CrossEncoder
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForSequenceClassification

torch.manual_seed(0)
documents = ("https://example.org/cat.html", "https://example.org/cat.png", "see https://example.org/cat.png")
known = ["?", "query:", "document:", "cats", "see", *documents[:2]]
words = Tokenizer(WordLevel({word: number for number, word in enumerate(known)}, unk_token="?"))
words.pre_tokenizer = WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?", pad_token="?", padding_side="left")
tokenizer.chat_template = (
    "{% for m in messages %}{{ m.role }}: "
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }} {% endif %}{% endfor %}{% endfor %}"
)
tokenizer.save_pretrained(sys.argv[1])
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
heads = {"num_key_value_heads": 2, "head_dim": 8, "num_labels": 1, "pad_token_id": 0}
Qwen3ForSequenceClassification(Qwen3Config(vocab_size=len(known), **sizes, **heads)).save_pretrained(sys.argv[1])
model = CrossEncoder(sys.argv[1], device="cpu")
print("supported:", ", ".join(model.modalities))
for document in documents:
    ids = model.preprocess([("cats", document)])["input_ids"][0].tolist()
    print(f"{document}: {' '.join(tokenizer.convert_ids_to_tokens(ids))}")
EOF

"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    torch==2.13.0 transformers==5.23.0 sentence-transformers==6.2.0 numpy==2.3.5
"$folder/venv/bin/python" -W ignore "$folder/address.py" "$folder/model" 2> /dev/null | tee "$folder/seen"
expected="supported: text, message
https://example.org/cat.html: query: cats document: https://example.org/cat.html
https://example.org/cat.png: query: cats document:
see https://example.org/cat.png: query: cats document: see https://example.org/cat.png"
printf '%s\n' "$expected" | cmp -s - "$folder/seen" || { echo "this has changed"; exit 1; }

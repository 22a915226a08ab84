#!/bin/sh
# sentence-transformers 6.2.0 with transformers 5.23.0 and torch 2.13.0: encode_document takes no "passage" or "corpus"
# prompt. Seen on 2026-11-29, Python 3.11, Linux x86_64.
#
# Expected: as its docstring says, encode_document uses the first available of the prompts "document", "passage" and
# "corpus". So a model whose files have a "passage" prompt puts that before documents.
# What happens: every model has an empty "document" prompt from the start, which is the first available. Neither
# "passage", "corpus" nor the default prompt is put before a document, and encode_query passes over the default prompt in
# the same way. The empty prompts are saved with the model.
# Why it matters: models that were trained with "passage: " are evaluated, and indexes are made, without it, and nothing
# is said. A server that sends the authors' prompt has other rows for the same call.
#
# Needs Python 3.11 to 3.13 with venv, a package index, and up to 8 GB of disk for the time it runs: torch's builds for
# Linux bring CUDA's libraries. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/prompts.py" <<'EOF'
import json
import sys
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

torch.manual_seed(0)
words = Tokenizer(WordLevel({"?": 0, "query:": 1, "passage:": 2, "text": 3}, unk_token="?"))
words.pre_tokenizer = WhitespaceSplit()
folder = Path(sys.argv[1], "model")
SentenceTransformer(modules=[StaticEmbedding(words, embedding_dim=8)], device="cpu").save_pretrained(str(folder))
file = folder / "config_sentence_transformers.json"
prompts = {"query": "query: ", "passage": "passage: "}
file.write_text(json.dumps(json.loads(file.read_text()) | {"prompts": prompts, "default_prompt_name": "passage"}))

model = SentenceTransformer(str(folder), device="cpu")
row = model.encode_document("text")
print("prompts:", model.prompts)
print("with the passage prompt:", np.array_equal(row, model.encode("text", prompt="passage: ")))
print("without a prompt:", np.array_equal(row, model.encode("text", prompt="")))
EOF

"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    torch==2.13.0 transformers==5.23.0 sentence-transformers==6.2.0 numpy==2.3.5
"$folder/venv/bin/python" -W ignore "$folder/prompts.py" "$folder" 2> /dev/null | tee "$folder/seen"
expected="prompts: {'query': 'query: ', 'document': '', 'passage': 'passage: '}
with the passage prompt: False
without a prompt: True"
printf '%s\n' "$expected" | cmp -s - "$folder/seen" || { echo "this has changed"; exit 1; }

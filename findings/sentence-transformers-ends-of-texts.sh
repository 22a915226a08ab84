#!/bin/sh
# sentence-transformers 5.3.0 and 5.4.0, each with transformers 4.57.6 and torch 2.13.0: the ends of texts. Seen on
# 2026-11-29, Python 3.11, Linux x86_64.
#
# Expected: a minor version tokenizes the same text alike.
# What happens: up to 5.3 spaces and line breaks are taken off both ends of each text before it is tokenized. From 5.4 on
# they stay. With tokenizers that keep them, as those of bytes and of SentencePiece do, such a text has other ids.
# Why it matters: an index that 5.3 filled (or PyLate 1.6, which pins it) has other rows for texts that end in a line
# break, as lines of files and chunks of documents do, than queries and documents of a later version; no error says so.
#
# Needs Python 3.11 to 3.13 with venv, a package index, and up to 8 GB of disk for the time it runs: torch's builds for
# Linux bring CUDA's libraries. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/ends.py" <<'EOF'
import sys
from pathlib import Path

import sentence_transformers
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

words = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
tokens = Tokenizer(models.BPE(vocab=words | {"[PAD]": len(words)}, merges=[]))
tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
folder = Path(sys.argv[1])
sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
BertModel(BertConfig(vocab_size=len(words) + 1, **sizes)).save_pretrained(folder)
PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="[PAD]", model_max_length=64).save_pretrained(folder)
model = SentenceTransformer(str(folder), device="cpu")
read = model.preprocess if hasattr(model, "preprocess") else model.tokenize
for text in ("one line\n", " indented"):
    print(f"{sentence_transformers.__version__}: {model.tokenizer.decode(read([text])['input_ids'][0])!r}")
EOF

"${PYTHON:-python3}" -m venv "$folder/venv"
for version in 5.3.0 5.4.0; do
    "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
        torch==2.13.0 transformers==4.57.6 sentence-transformers==$version numpy==2.3.5
    "$folder/venv/bin/python" -W ignore "$folder/ends.py" "$folder/model" 2> /dev/null
done | tee "$folder/seen"
expected="5.3.0: 'one line'
5.3.0: 'indented'
5.4.0: 'one line\n'
5.4.0: ' indented'"
printf '%s\n' "$expected" | cmp -s - "$folder/seen" || { echo "this has changed"; exit 1; }

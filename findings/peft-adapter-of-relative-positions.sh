#!/bin/sh
# PEFT 0.21.2 with transformers 5.23.0: an adapter of DeBERTa's table of relative positions does nothing until it is
# merged. Seen on 2026-11-29, Python 3.11, Linux x86_64.
#
# Expected: what an adapter changes in a model's rows is the same whether PEFT computes it beside the model or merges it.
# What happens: PEFT puts a layer of its own in the place of the table, which adds to what the table's forward gives.
# DeBERTa never calls that forward: it reads the table's weight, which is the base's. merge_and_unload writes the product
# into this weight, and from then on it counts.
# Why it matters: such an adapter can't have been trained, yet a merged copy of it has other rows than the model that was
# tried. Rows of a merged copy are no proof of what PEFT computes, nor the other way round; a server that serves both has
# to hold each against its own reference.
#
# Needs Python 3.11 to 3.13 with venv, a package index, and up to 8 GB of disk for the time it runs: torch's builds for
# Linux bring CUDA's libraries. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/adapt.py" <<'EOF'
import torch
from peft import LoraConfig, get_peft_model
from transformers import DebertaV2Config, DebertaV2Model

sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 16}
relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 8}
ids = torch.arange(1, 12)[None]
for target in ("query_proj", "word_embeddings", "rel_embeddings"):
    torch.manual_seed(0)
    model = DebertaV2Model(DebertaV2Config(**sizes, **relative, initializer_range=0.5)).eval()
    with torch.inference_mode():
        plain = model(ids).last_hidden_state
        adapted = get_peft_model(model, LoraConfig(r=2, target_modules=[target], init_lora_weights=False)).eval()
        beside = adapted(ids).last_hidden_state
        merged = adapted.merge_and_unload()(ids).last_hidden_state
    changed = [not torch.allclose(plain, rows, atol=1e-4) for rows in (beside, merged)]
    print(f"{target}: rows change beside the model: {changed[0]}, merged: {changed[1]}")
EOF

"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    torch==2.13.0 transformers==5.23.0 peft==0.21.2 accelerate==1.15.0 numpy==2.3.5
"$folder/venv/bin/python" -W ignore "$folder/adapt.py" "$folder/adapter" 2> /dev/null | tee "$folder/seen"
expected="query_proj: rows change beside the model: True, merged: True
word_embeddings: rows change beside the model: True, merged: True
rel_embeddings: rows change beside the model: False, merged: True"
printf '%s\n' "$expected" | cmp -s - "$folder/seen" || { echo "this has changed"; exit 1; }

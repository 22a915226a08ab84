#!/bin/sh
# transformers 5.23.0 with torch 2.13.0: the text layers of T5Gemma 2's encoder stay in bfloat16 when float32 is asked
# for. Seen on 2026-11-29, Python 3.11, Linux x86_64.
#
# Expected: `from_pretrained(folder, dtype=torch.float32)` makes all weights float32, as its documentation says.
# What happens: the asked type is told to the configurations one level down, encoder and decoder. The encoder's own text
# part and image part lie two levels down and keep the `dtype` of the file, and so do the weights that are made from
# them. The decoder gets its embedding from there too. The model's configuration says float32, and nothing is said.
# Why it matters: who takes the encoder's rows as a reference in float32 gets bfloat16's, with two or three digits. With
# its decoder the model stops at types that do not fit. Published files name bfloat16 in these parts; files that name no
# type there are not concerned. `model.float()` after loading helps where the weights were stored in bfloat16.
#
# Needs Python 3.11 to 3.13 with venv, a package index, and up to 8 GB of disk for the time it runs: torch's builds for
# Linux bring CUDA's libraries. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/load.py" <<'EOF'
import sys

import torch
from transformers import T5Gemma2Config, T5Gemma2Model

torch.manual_seed(0)
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
text = sizes | {"vocab_size": 16, "num_key_value_heads": 1, "head_dim": 8, "layer_types": ["full_attention"]}
image = sizes | {"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 8}
ids = {"image_token_index": 14, "eoi_token_index": 15}
for inner in (None, "bfloat16"):
    parts = {"text_config": text | {"dtype": inner}, "vision_config": image | {"dtype": inner}}
    encoder = {"mm_tokens_per_image": 4, "dtype": "bfloat16", **parts, **ids}
    config = T5Gemma2Config(encoder=encoder, decoder=text | {"dtype": "bfloat16"}, dtype="bfloat16", **ids)
    T5Gemma2Model(config).to(torch.bfloat16).save_pretrained(sys.argv[1])
    model = T5Gemma2Model.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    with torch.inference_mode():
        rows = model.encoder(input_ids=torch.tensor([[3, 4, 5]])).last_hidden_state
    layers = {str(weight.dtype) for weight in model.encoder.text_model.layers.parameters()}
    print(f"the file's type of the text part: {inner}; the model's type: {model.config.dtype}")
    print(f"  text layers of the encoder: {', '.join(layers)}; its rows: {rows.dtype}")
    print(f"  embedding of the decoder: {model.decoder.embed_tokens.weight.dtype}")
EOF

"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    torch==2.13.0 transformers==5.23.0 numpy==2.3.5
"$folder/venv/bin/python" -W ignore "$folder/load.py" "$folder/model" 2> /dev/null | tee "$folder/seen"
expected="the file's type of the text part: None; the model's type: torch.float32
  text layers of the encoder: torch.float32; its rows: torch.float32
  embedding of the decoder: torch.float32
the file's type of the text part: bfloat16; the model's type: torch.float32
  text layers of the encoder: torch.bfloat16; its rows: torch.bfloat16
  embedding of the decoder: torch.bfloat16"
printf '%s\n' "$expected" | cmp -s - "$folder/seen" || { echo "this has changed"; exit 1; }

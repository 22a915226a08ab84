#!/bin/sh
# transformers 5.23.0: OLMo 3's sliding layers lose the base of their angles. Seen on 2026-11-29, Python 3.11, Linux x86_64.
#
# Expected: `rope_theta` of a config.json in the older form is the base of the angles in all layers.
# What happens: `Olmo3Config.convert_rope_params_to_dict` takes the key out of its arguments (`kwargs.pop`) for the full
# layers, so for the sliding ones it finds none and takes the default, 500000.
# Why it matters: three of four layers compute other angles than the model was trained with, without a word. Files with
# 500000, as OLMo 3's own, are not concerned.
#
# Needs Python 3.11 to 3.13 with venv, and a package index. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir transformers==5.23.0
"$folder/venv/bin/python" -W ignore -c '
from transformers import Olmo3Config
rope = Olmo3Config.from_dict({"model_type": "olmo3", "rope_theta": 1000000.0}).rope_parameters
print({layers: rope[layers]["rope_theta"] for layers in sorted(rope)})
' 2>/dev/null | tee "$folder/seen"
expected="{'full_attention': 1000000.0, 'sliding_attention': 500000.0}"
printf '%s\n' "$expected" | cmp -s - "$folder/seen" || { echo "this has changed"; exit 1; }

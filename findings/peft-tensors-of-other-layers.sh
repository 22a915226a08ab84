#!/bin/sh
# PEFT 0.21.2: matrices in adapter_model.safetensors of layers that adapter_config.json does not name are left out, and
# nothing is said. Seen on 2026-11-29, Python 3.11, Linux x86_64.
#
# Expected: a file with tensors that the model does not take is an error, or at least a warning, as PEFT warns of tensors
# that are missing.
# What happens: target_modules, exclude_modules and layers_to_transform decide which layers get an adapter. Tensors of
# others are dropped while the file is loaded, and no warning names them.
# Why it matters: a server or a converter that goes by the tensors alone, which seem to say which layers are meant,
# computes another model than PEFT does from the same folder. A key that was edited by hand, or written for another
# version's names of layers, costs a part of the adapter, and its rows look like rows.
#
# Needs Python 3.11 to 3.13 with venv, a package index, and up to 8 GB of disk for the time it runs: torch's builds for
# Linux bring CUDA's libraries. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/adapt.py" <<'EOF'
import json
import sys
import warnings
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import BertConfig, BertModel

folder = Path(sys.argv[1])
sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 16}


def base():
    torch.manual_seed(0)
    return BertModel(BertConfig(**sizes)).eval()


config = LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False)
get_peft_model(base(), config).save_pretrained(folder)
file = folder / "adapter_config.json"
whole = json.loads(file.read_text())
for key, value in (("r", 2), ("target_modules", ["query"]), ("exclude_modules", ["value"]), ("layers_to_transform", [0])):
    file.write_text(json.dumps(whole | {key: value}))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(base(), folder)
    num_loaded = sum(".lora_A." in name for name, _ in model.named_parameters())
    num_told = sum("value" in str(each.message) or "keys" in str(each.message) for each in told)
    print(f"{key} = {value}: {num_loaded} of 4 layers get their matrices, {num_told} warnings")
EOF

"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    torch==2.13.0 transformers==5.23.0 peft==0.21.2 accelerate==1.15.0 numpy==2.3.5
"$folder/venv/bin/python" -W ignore "$folder/adapt.py" "$folder/adapter" 2> /dev/null | tee "$folder/seen"
expected="r = 2: 4 of 4 layers get their matrices, 0 warnings
target_modules = ['query']: 2 of 4 layers get their matrices, 0 warnings
exclude_modules = ['value']: 2 of 4 layers get their matrices, 0 warnings
layers_to_transform = [0]: 2 of 4 layers get their matrices, 0 warnings"
printf '%s\n' "$expected" | cmp -s - "$folder/seen" || { echo "this has changed"; exit 1; }

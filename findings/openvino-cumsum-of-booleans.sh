#!/bin/sh
# OpenVINO 2026.4.1 with torch 2.13.0: the cumulative sum of a boolean tensor. Seen on 2026-11-27, Python 3.11, Linux x86_64.
#
# Expected: torch promotes booleans, so `mask.cumsum(-1)` of 300 true values counts from 1 to 300 in int64, and the
# converted model does the same.
# What happens: conversion and compilation succeed without a word, and the output stays boolean. Where it is used on in
# arithmetic, the sum is kept in a byte on a CPU and begins anew behind 255. `mask.int().cumsum(-1)` and `mask.sum(-1)`
# are right.
# Why it matters: models number positions and chunks of attention by the cumulative sum of their mask. With short texts
# all is well; from 256 tokens on the rows are others, and a test with short inputs sees nothing.
#
# Needs Python 3.11 to 3.13 with venv, a package index, and up to 8 GB of disk for the time it runs: torch's builds for
# Linux bring CUDA's libraries. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/sums.py" <<'EOF'
import openvino
import torch

WAYS = {
    "mask.cumsum(-1)": lambda mask: mask.cumsum(-1),
    "mask.cumsum(-1) + 0": lambda mask: mask.cumsum(-1) + torch.zeros(1, dtype=torch.int64),
    "mask.int().cumsum(-1)": lambda mask: mask.int().cumsum(-1),
    "mask.sum(-1)": lambda mask: mask.sum(-1),
}


class Model(torch.nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, ids):
        return self.way(ids > 0)


ids = torch.ones(1, 300, dtype=torch.int64)
for name, way in WAYS.items():
    expected = Model(way)(ids)
    converted = openvino.convert_model(torch.jit.trace(Model(way), ids), example_input=ids)
    found = openvino.compile_model(converted, "CPU")(ids.numpy())[0]
    print(f"{name}: torch {expected.flatten()[-1].item()}, OpenVINO {found.ravel()[-1]} ({found.dtype})")
EOF

"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    torch==2.13.0 openvino==2026.4.1 numpy==2.3.5
"$folder/venv/bin/python" -W ignore "$folder/sums.py" | tee "$folder/seen"
expected="mask.cumsum(-1): torch 300, OpenVINO True (bool)
mask.cumsum(-1) + 0: torch 300, OpenVINO 44 (int64)
mask.int().cumsum(-1): torch 300, OpenVINO 300 (int32)
mask.sum(-1): torch 300, OpenVINO 300 (int64)"
printf '%s\n' "$expected" | cmp -s - "$folder/seen" || { echo "this has changed"; exit 1; }

#!/bin/sh
# torch 2.11.0 on a CPU: torch._scaled_mm takes no scales by row. Seen on 2026-11-27, Python 3.11, Linux x86_64.
#
# Expected: the product of float8_e4m3fn tensors [M, K] and [K, N] with scales [M, 1] and [1, N], as on CUDA and as with
# torch 2.13.0 on a CPU, or an error that says that the CPU has no such product.
# What happens: RuntimeError with "INTERNAL ASSERT FAILED … please report a bug to PyTorch. Now _scaled_mm only supports
# per-tensor scaling for CPU backend". One scale for each tensor works. The public torch.nn.functional.scaled_mm has no
# operator for CPUs at all in 2.11.0. Upstream knows: https://github.com/pytorch/pytorch/pull/179118.
# Why it matters: a library that allows torch>=2.11 and is tested with a newer one ends in that assert on a CPU, and a
# test that holds a GPU's product against a CPU's fails though the GPU is right.
#
# Needs Python 3.11 to 3.13 with venv, a package index, and up to 12 GB of disk for the time it runs: torch's builds for
# Linux bring CUDA's libraries. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/products.py" <<'EOF'
import torch
from torch.nn import functional

rows, weight = (torch.ones(size, 64).to(torch.float8_e4m3fn) for size in (32, 48))
scaling = functional.ScalingType


def said(product):
    try:
        return sorted(product().float().unique().tolist())
    except RuntimeError as error:  # NotImplementedError is one
        text = str(error)
        known = ("INTERNAL ASSERT FAILED", "Could not run 'aten::_scaled_mm_v2'")
        return next((part for part in known if part in text), text)


def private(scale_a, scale_b):
    return torch._scaled_mm(rows, weight.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.float32)


def public(scale_a, scale_b):
    return functional.scaled_mm(rows, weight.t(), scale_a, scaling.RowWise, scale_b, scaling.RowWise)


by_row = torch.full((32, 1), 2.0), torch.full((1, 48), 0.5)
print("by tensor:", said(lambda: private(torch.tensor(2.0), torch.tensor(0.5))))
print("by row:", said(lambda: private(*by_row)))
print("public, by row:", said(lambda: public(*by_row)))
EOF

failed=0
check() { # version, lines that are expected
    "${PYTHON:-python3}" -m venv "$folder/$1"
    "$folder/$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir "torch==$1" numpy==2.3.5
    echo "torch $1"
    "$folder/$1/bin/python" "$folder/products.py" | tee "$folder/seen"
    printf '%s\n' "$2" | cmp -s - "$folder/seen" || { echo "this has changed"; failed=1; }
    rm -rf "${folder:?}/$1"
}

check 2.11.0 "by tensor: [64.0]
by row: INTERNAL ASSERT FAILED
public, by row: Could not run 'aten::_scaled_mm_v2'"
check 2.13.0 "by tensor: [64.0]
by row: [64.0]
public, by row: [64.0]"
exit $failed

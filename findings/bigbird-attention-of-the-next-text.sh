#!/bin/sh
# transformers 5.23.0 with torch 2.13.0: one short text changes BigBird for good. Seen on 2026-11-27, Python 3.11, Linux
# x86_64.
#
# Expected: a model in eval mode gives a text the same rows, whatever it was given before. Where a text is too short for
# block-sparse attention, the class computes that text in full, as its warning says.
# What happens: the first short text sets `attention_type` of the model to original_full, and nothing sets it back, so
# long texts have full attention from then on. The configuration says block_sparse still.
# Why it matters: a server's rows depend on what other clients sent before, and an index that was filled before the
# first short query does not fit those that come after it. Texts alone, long ones alone and short ones alone look right.
#
# Needs Python 3.11 to 3.13 with venv, a package index, and up to 8 GB of disk for the time it runs: torch's builds for
# Linux bring CUDA's libraries. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/texts.py" <<'EOF'
import torch
from transformers import BigBirdConfig, BigBirdModel, logging as library_logging

library_logging.set_verbosity_error()
torch.manual_seed(0)
config = BigBirdConfig(
    vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, block_size=16,
    num_random_blocks=2, max_position_embeddings=512, initializer_range=0.5,
)
model = BigBirdModel(config).eval()
generator = torch.Generator().manual_seed(1)
long, short = (torch.randint(5, 100, (1, size), generator=generator) for size in (192, 20))
with torch.no_grad():
    before = model(long).last_hidden_state
    again = model(long).last_hidden_state
    model(short)
    after = model(long).last_hidden_state
print("the same text twice is equal:", torch.equal(before, again))
cosine = torch.nn.functional.cosine_similarity(before.mean(1), after.mean(1)).item()
print("equal after a short text:", torch.equal(before, after), "far:", cosine < 0.95)
print("attention_type:", config.attention_type, "->", model.attention_type)
EOF

"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    torch==2.13.0 transformers==5.23.0 numpy==2.3.5
"$folder/venv/bin/python" -W ignore "$folder/texts.py" | tee "$folder/seen"
expected="the same text twice is equal: True
equal after a short text: False far: True
attention_type: block_sparse -> original_full"
printf '%s\n' "$expected" | cmp -s - "$folder/seen" || { echo "this has changed"; exit 1; }

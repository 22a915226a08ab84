#!/bin/sh
# transformers 4.57.6, 5.3.0 and 5.23.0, each with torch 2.13.0: what LFM2 computes for a masked token depends on the
# version, and with 5.3.0 on the batch. Seen on 2026-11-29, Python 3.11, Linux x86_64.
#
# Expected: the mask decides which tokens others see. The row of a masked token that follows a text is computed from that
# text all the same, alike in each version, and alike whether the text comes alone or with others.
# What happens: with 4.57.6 the mask never reaches LFM2's short convolutions. With 5.23.0 it sets a masked token's input
# there to zeros, so its row has nothing of the text from these layers. With 5.3.0 it does so in batches of two texts or
# more, and not for one alone. Rows of the text itself are alike in all.
# Why it matters: a late-interaction query can be filled up with tokens that are masked and whose rows count, as PyLate
# does by default. An LFM2 that was trained with 4.57 then gets other rows for its queries, and with 5.3.0 two kinds of
# them. It was changed for padding before a text: https://github.com/huggingface/transformers/pull/41790.
#
# Needs Python 3.11 to 3.13 with venv, a package index, and up to 8 GB of disk for the time it runs: torch's builds for
# Linux bring CUDA's libraries. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/rows.py" <<'EOF'
import sys
from pathlib import Path

import torch
import transformers
from transformers import Lfm2Config, Lfm2Model

folder, first = Path(sys.argv[1], "model"), Path(sys.argv[1], "first.pt")
if not folder.exists():
    torch.manual_seed(0)
    sizes = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]}
    Lfm2Model(Lfm2Config(initializer_range=0.5, **sizes, **heads)).save_pretrained(folder)
model = Lfm2Model.from_pretrained(folder).eval()
ids, mask = torch.tensor([[3, 4, 5, 7]]), torch.tensor([[1, 1, 1, 0]])
for name, count in (("alone", 1), ("one of two", 2)):
    with torch.inference_mode():
        rows = model(input_ids=ids.repeat(count, 1), attention_mask=mask.repeat(count, 1)).last_hidden_state[0]
    if not first.exists():
        torch.save(rows, first)
    *text, masked = torch.isclose(rows, torch.load(first), atol=1e-3).all(dim=-1).tolist()
    print(f"{transformers.__version__}, {name}: as 4.57.6 alone: text {all(text)}, masked token {masked}")
EOF

"${PYTHON:-python3}" -m venv "$folder/venv"
for version in 4.57.6 5.3.0 5.23.0; do
    "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
        torch==2.13.0 transformers==$version numpy==2.3.5
    "$folder/venv/bin/python" -W ignore "$folder/rows.py" "$folder" 2> /dev/null
done | tee "$folder/seen"
expected="4.57.6, alone: as 4.57.6 alone: text True, masked token True
4.57.6, one of two: as 4.57.6 alone: text True, masked token True
5.3.0, alone: as 4.57.6 alone: text True, masked token True
5.3.0, one of two: as 4.57.6 alone: text True, masked token False
5.23.0, alone: as 4.57.6 alone: text True, masked token False
5.23.0, one of two: as 4.57.6 alone: text True, masked token False"
printf '%s\n' "$expected" | cmp -s - "$folder/seen" || { echo "this has changed"; exit 1; }

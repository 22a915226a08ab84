"""One file of weights with a head of one row in it, made of the vocabulary's rows for an answer.

Shapes: V entries of the vocabulary, D numbers a row.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from engine.types import ModelError

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_READ_WRITE = 0o666


def write(source: Path, target: Path, name: str, entries: tuple[int, ...], *, leaves_out: bool, head: str) -> None:
    """`source` as `target` with the tensor `head`, [1, D] in float32: row entries[0] of the tensor `name`, [V, D], less
    row entries[1] where there is one. leaves_out: `name` is not written.

    float32 whatever the model's dtype is, as the difference of two rows has more digits than either; who computes in
    fewer rounds it then. Raises ModelError where `source` is no safetensors file, or the rows are not there.
    """
    try:
        tensors = load_file(source)
    except Exception as error:  # the library raises what it likes
        raise ModelError(f"{source.name} is not a safetensors file") from error
    rows_VD = tensors[name]
    if rows_VD.ndim != 2 or rows_VD.dtype not in _DTYPES or max(entries) >= len(rows_VD):
        raise ModelError(f"{name!r} in {source.name} has no plain rows for the tokens {', '.join(map(str, entries))}")
    yes, *no = (rows_VD[entry].float() for entry in entries)
    tensors[head] = torch.stack([yes - no[0] if no else yes])
    if leaves_out:
        del tensors[name]
    save_file(tensors, target, metadata={"format": "pt"})
    target.chmod(target.parent.stat().st_mode & _READ_WRITE)  # the library has it for this user alone

"""Token rows of a tiny model by transformers' own backbone, as a backbone of the library's would give them: packed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from engine.tensorrt_llm.library.models import pool, score_rows
from engine.tensorrt_llm.planning.head import PlannedHead
from tests.engine.tiny_models import Reference


@dataclass(frozen=True, slots=True)
class Metadata:
    """All that our classes read of the library's."""

    seq_lens_cuda: Tensor  # int32 [B]


def packed(folder: Path, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Metadata]:
    """Rows [T, D], one sequence computed after the other."""
    reference = Reference(folder)
    token_rows = [torch.from_numpy(reference.token_rows(sequence)) for sequence in sequences]
    return torch.cat(token_rows), Metadata(torch.tensor([len(rows) for rows in token_rows], dtype=torch.int32))


def weights_of(folder: Path) -> dict[str, Any]:
    return dict(load_file(folder / "model.safetensors"))


def rows_by(head: PlannedHead, folder: Path, sequences: Sequence[Sequence[int]], *, is_tied: bool = False) -> Tensor:
    """What our class makes of them, [B, L]."""
    token_rows, metadata = packed(folder, sequences)
    rows = pool(token_rows, metadata.seq_lens_cuda, head.pooling)
    weight = score_rows(weights_of(folder), head, is_tied=is_tied)
    return rows if weight is None else functional.linear(rows, weight)

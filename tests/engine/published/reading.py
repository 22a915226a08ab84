"""What readings of authors' code have in common: plain torch in float64, one sequence at a time.

Shapes: S tokens, N heads, D numbers a head.
"""

import dataclasses
import importlib
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.registry import ENGINES
from engine.types import Batch, Engine, OutputKind
from tests.engine.load_options import load_options
from tests.engine.published.folders import Weights
from tests.engine.tiny_models import batch

TRANSFORMERS, OPENVINO, FUSED = "transformers", "openvino", "fused"


def linear(weights: Weights, name: str, rows: Tensor) -> Tensor:
    """The layer of this name, with its bias if it has one."""
    found = rows @ weights[f"{name}.weight"].T
    return found + weights[f"{name}.bias"] if f"{name}.bias" in weights else found


def norm(weights: Weights, name: str, rows: Tensor, eps: float) -> Tensor:
    """LayerNorm: mean 0, variance 1, then scaled and shifted."""
    centred = rows - rows.mean(-1, keepdim=True)
    unit = centred / ((centred**2).mean(-1, keepdim=True) + eps).sqrt()
    return unit * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(rows: Tensor) -> Tensor:
    """With the error function, not its approximation by tanh."""
    return rows * 0.5 * (1 + torch.erf(rows / math.sqrt(2)))


def attention(query: Tensor, key: Tensor, value: Tensor, num_heads: int, bias: Tensor | None = None) -> Tensor:
    """Softmax attention of all to all, of rows [S, N * D]; bias [N, S, S] is added to the scores."""
    query, key, value = (rows.reshape(len(rows), num_heads, -1).transpose(0, 1) for rows in (query, key, value))
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    weights = (scores if bias is None else scores + bias).softmax(-1)
    return (weights @ value).transpose(0, 1).flatten(1)


def turned(rows: Tensor, num_heads: int, frequencies: Tensor) -> Tensor:
    """Rotary positions: numbers i and i + D / 2 of a head as a point, turned by position * frequencies[i]."""
    heads = rows.reshape(len(rows), num_heads, -1)
    x, y = heads.chunk(2, dim=-1)
    angle = torch.arange(len(rows), dtype=torch.float64)[:, None, None] * frequencies
    return torch.cat((x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()), dim=-1).flatten(1)


def frequencies(theta: float, head_size: int) -> Tensor:
    """theta ** (-2 i / D)."""
    return theta ** -(torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)


def computed(engine: str, folder: Path, one: Batch) -> tuple[NDArray[np.float32], str]:
    """Rows of the batch, which asks for one kind, and the engine's first note."""
    module = importlib.import_module(ENGINES[engine].module)
    loaded: Engine = module.load(name="m", reason="asked", options=load_options(folder))
    try:
        ticket = loaded.submit(one)
        collected, results = loaded.collect()
        assert collected == ticket
        assert isinstance(results, dict), results
        return results[one.outputs].values, loaded.info.notes[0]
    finally:
        loaded.close()


def ids_of(one: Batch) -> list[list[int]]:
    """The ids of each sequence."""
    return [one.token_ids[start:end].tolist() for start, end in pairwise(one.cu_seqlens.tolist())]


def together_and_alone(sequences: Sequence[Sequence[int]], outputs: OutputKind = OutputKind.POOLED) -> list[Batch]:
    """A batch of all, and one of the longest."""
    both = (sequences, [max(sequences, key=len)])
    return [dataclasses.replace(batch(part), outputs=outputs) for part in both]


def difference(found: NDArray[np.float32], expected: Sequence[Tensor]) -> float:
    """The largest, relative to the largest value where that is above 1."""
    wanted = torch.stack(list(expected)).numpy()
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max()))

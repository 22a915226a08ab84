"""What readings of authors' code have in common: plain torch in float64, one sequence at a time.

Shapes: S tokens, N heads, D numbers a head.
"""

import math

import torch
from torch import Tensor
from transformers.activations import ACT2FN

from tests.parity.repositories.own_code.forms import Weights


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


def activated(name: str, rows: Tensor) -> Tensor:
    """By an activation that config.json names."""
    found: Tensor = gelu(rows) if name == "gelu" else ACT2FN[name](rows)
    return found


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

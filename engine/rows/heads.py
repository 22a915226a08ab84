"""Heads: what is made of hidden states beside embeddings: scores by layers that a model's files hold, token vectors.

Heads are data (`engine.model.tasks`), here with their tensors. They compute in float32, whatever the model's dtype,
since most are small. Nothing here waits for a GPU, so all of it can be a part of a recorded graph.

Shapes: T tokens of a batch, B sequences, D numbers of a hidden state, L scores.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from engine.model.tasks import NORMALIZE_FLOOR, ScoreHead, ScoreLayer, TokenVectors, output_size
from engine.rows.with_torch import RowModules, activated, load_modules

# Activations of ScoreLayer that a module after the pooling may have as well, and what they are called there.
_NAMES = {"identity": "Identity", "tanh": "Tanh", "relu": "ReLU", "silu": "SiLU", "gelu": "GELU"}


class Scorer:
    """Raw scores by a ScoreHead."""

    def __init__(self, head: ScoreHead, tensors: Mapping[str, Tensor]) -> None:
        """tensors: "0.weight", "0.bias", "0.norm.weight", … of each layer, float32; a layer may have no bias."""
        self._head = head
        self._layers = [_Layer(layer, tensors, f"{number}.") for number, layer in enumerate(head.layers)]

    def before_mean(self, hidden: Tensor) -> Tensor:
        """What a mean is taken of: [T, D] of hidden states [T, D], float32."""
        return self._through(hidden, self._layers[: self._head.num_before_mean])

    def __call__(self, hidden: Tensor) -> Tensor:
        """float32 [N, L] of N hidden states, or of N means of `before_mean`."""
        head = self._head
        scores = self._through(hidden, self._layers[head.num_before_mean :])
        if head.softcap is not None:
            scores = torch.tanh(scores / head.softcap) * head.softcap
        if head.temperature != 1.0:
            scores = scores / head.temperature
        return scores[:, :1] - scores[:, 1:] if head.is_difference else scores

    @staticmethod
    def _through(rows: Tensor, layers: "list[_Layer]") -> Tensor:
        rows = rows.float()
        for layer in layers:
            rows = layer(rows)
        return rows


class _Layer:
    def __init__(self, layer: ScoreLayer, tensors: Mapping[str, Tensor], prefix: str) -> None:
        self._layer = layer
        self._weight, self._bias = tensors[f"{prefix}weight"], tensors.get(f"{prefix}bias")
        self._norm_weight, self._norm_bias = tensors.get(f"{prefix}norm.weight"), tensors.get(f"{prefix}norm.bias")

    def __call__(self, rows: Tensor) -> Tensor:
        found = _activated(functional.linear(rows, self._weight, self._bias), self._layer.activation)
        if self._layer.norm_eps is None:
            return found
        return functional.layer_norm(
            found, (self._layer.size,), self._norm_weight, self._norm_bias, self._layer.norm_eps
        )


def _activated(rows: Tensor, activation: str) -> Tensor:
    """activation: see ScoreLayer."""
    if activation == "gelu_tanh":
        return functional.gelu(rows, approximate="tanh")
    return activated(rows, _NAMES[activation])


class Vectors:
    """ColBERT's vectors of tokens."""

    def __init__(self, head: TokenVectors, modules: RowModules) -> None:
        self._head = head
        self._modules = modules

    def __call__(self, hidden: Tensor) -> Tensor:
        """float32 [T, head.dimensions] of hidden states [T, D]."""
        vectors = self._modules(hidden).float()
        return functional.normalize(vectors, dim=-1, eps=NORMALIZE_FLOOR) if self._head.normalize else vectors


def load_vectors(folder: Path, head: TokenVectors, *, hidden_size: int, device: torch.device) -> Vectors:
    """Raises ModelError if a file of the steps is wrong."""
    size = output_size(head.steps, hidden_size)
    assert size == head.dimensions, (size, head.dimensions)
    return Vectors(head, load_modules(folder, head.steps, device=device))

"""Weights by name, as transformers' files have them: of a whole model, or of its backbone alone, without the prefix.

Shapes: D numbers a row of the model, L outputs, V entries of the vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from engine.tensorrt_llm.library.head import Head, HeadKind
from engine.types import ModelError

PREFIX = "model."  # of the backbone's weights in a file of a whole model
SCORE = "score"  # of the layer that makes scores, there and in our classes

_EMBEDDING = f"{PREFIX}embed_tokens.weight"  # [V, D]
_VOCABULARY = "lm_head.weight"  # [V, D]

Weights = Mapping[str, Any]  # tensors, or what gives one for [:]


def with_or_without_prefix(filtered: Callable[[str, Any], dict[str, Any]], prefix: str, weights: Any) -> dict[str, Any]:
    """What `filtered` finds below a module's name, or below the same in a file of the backbone alone."""
    found = filtered(prefix, weights)
    return found if found or not prefix.startswith(PREFIX) else filtered(prefix.removeprefix(PREFIX), weights)


def score_rows(weights: Weights, head: Head, *, is_tied: bool) -> Tensor | None:
    """float32 [L, D], a copy; None for a head without a layer. is_tied: the embedding is the vocabulary's scores too.

    Raises ModelError where the file has not got them, or has them in numbers that mean nothing without a scale.
    """
    match head.kind:
        case HeadKind.EMBED:
            return None
        case HeadKind.SCORE:
            return _as_float32(_tensor(weights, f"{SCORE}.weight"))
    rows = _tensor(weights, _EMBEDDING if is_tied else _VOCABULARY)
    yes = _as_float32(rows[head.yes_id])
    return (yes if head.no_id is None else yes - _as_float32(rows[head.no_id]))[None]


def _tensor(weights: Weights, name: str) -> Tensor:
    """As it is stored: a vocabulary in float32 may be gigabytes more than the two rows that are needed of it."""
    found = next((each for each in (name, name.removeprefix(PREFIX)) if each in weights), None)
    if found is None:
        raise ModelError(f"the weights have no {name}, which the scores are made with")
    tensor: Tensor = weights[found][:]
    if not tensor.is_floating_point() or tensor.element_size() < 2:
        raise ModelError(f"the tensor {found!r} is stored quantized; the layer that makes scores has to be plain")
    return tensor


def _as_float32(rows: Tensor) -> Tensor:
    """A copy on the CPU."""
    return rows.to(device="cpu", dtype=torch.float32, copy=True)

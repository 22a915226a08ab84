"""Weights found by name, in files of whole models and of backbones alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.tensorrt_llm.models import score_rows, with_or_without_prefix
from engine.tensorrt_llm.planning.head import HeadKind, PlannedHead
from engine.types import ModelError

VOCAB_SIZE, SIZE = 12, 6
EMBEDDING = torch.arange(VOCAB_SIZE * SIZE, dtype=torch.bfloat16).reshape(VOCAB_SIZE, SIZE)
VOCABULARY = -EMBEDDING + 1
SCORE = EMBEDDING[:3].float()


class Lazy:
    """What the library hands on of a file that is read only where it is asked for: no tensor but by [:]."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __getitem__(self, index: slice) -> Tensor:
        assert index == slice(None)
        return self._tensor


def head(kind: HeadKind, **others: Any) -> PlannedHead:
    return PlannedHead(**{"kind": kind, "pooling": "last", "is_causal": True, "num_outputs": 1, **others})


ANSWER = head(HeadKind.ANSWER, yes_id=7, no_id=2)


def filtered(prefix: str, weights: dict[str, Any]) -> dict[str, Any]:
    """As the library's mapper does it."""
    return {name[len(prefix) + 1 :]: each for name, each in weights.items() if name.startswith(f"{prefix}.")}


def test_a_whole_model_is_not_searched_for_other_names() -> None:
    weights = {"model.norm.weight": 1, "norm.weight": 2, "score.weight": 3}

    assert with_or_without_prefix(filtered, "model.norm", weights) == {"weight": 1}
    assert with_or_without_prefix(filtered, "score", weights) == {"weight": 3}
    assert with_or_without_prefix(filtered, "lm_head", weights) == {}


@pytest.mark.parametrize("lazily", [False, True])
def test_the_score_layer_as_it_is_stored(lazily: bool) -> None:
    stored = SCORE.bfloat16()

    found = score_rows({"score.weight": Lazy(stored) if lazily else stored}, head(HeadKind.SCORE), is_tied=False)

    assert found is not None
    assert found.dtype == torch.float32
    assert torch.equal(found, SCORE)


def test_of_a_vocabulary_two_rows_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, all of a large one would be gigabytes."""
    copied: list[int] = []
    to = Tensor.to

    def counting(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        copied.append(tensor.numel())
        return to(tensor, *args, **kwargs)

    monkeypatch.setattr(Tensor, "to", counting)
    score_rows({"lm_head.weight": VOCABULARY}, ANSWER, is_tied=False)

    assert copied == [SIZE, SIZE]


@pytest.mark.parametrize("kind", [HeadKind.SCORE, HeadKind.ANSWER])
def test_rows_do_not_share_memory_with_the_file(kind: HeadKind) -> None:
    """The library lets go of a file's memory once its own modules have their weights."""
    weights = {"score.weight": SCORE.clone(), "lm_head.weight": VOCABULARY.float()}
    found = score_rows(weights, head(kind, yes_id=7), is_tied=False)
    assert found is not None
    before = found.clone()

    for tensor in weights.values():
        tensor.zero_()

    assert torch.equal(found, before)


@pytest.mark.parametrize(
    ("kind", "weights", "words"),
    [
        (HeadKind.SCORE, {"model.norm.weight": SCORE}, "have no score.weight"),
        (HeadKind.ANSWER, {"model.norm.weight": SCORE}, "have no lm_head.weight"),
        (HeadKind.SCORE, {"score.weight": SCORE.to(torch.float8_e4m3fn)}, "'score.weight' is stored quantized"),
        (HeadKind.SCORE, {"score.weight": SCORE.to(torch.int8)}, "'score.weight' is stored quantized"),
        (HeadKind.ANSWER, {"lm_head.weight": VOCABULARY.to(torch.uint8)}, "'lm_head.weight' is stored quantized"),
    ],
)
def test_a_missing_or_quantized_tensor_is_named(kind: HeadKind, weights: dict[str, Tensor], words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        score_rows(weights, head(kind, yes_id=7, no_id=2), is_tied=False)
    assert "\n" not in str(caught.value)

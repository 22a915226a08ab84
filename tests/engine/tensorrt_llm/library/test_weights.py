"""Weights found by name, in files of whole models and of backbones alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.tensorrt_llm.library.models import score_rows, with_or_without_prefix
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


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_module_is_found_with_and_without_the_prefix(prefix: str) -> None:
    weights = {f"{prefix}layers.1.mlp.down_proj.weight": 1, f"{prefix}layers.10.mlp.down_proj.weight": 2}

    assert with_or_without_prefix(filtered, "model.layers.1.mlp.down_proj", weights) == {"weight": 1}


def test_a_whole_model_is_not_searched_for_other_names() -> None:
    weights = {"model.norm.weight": 1, "norm.weight": 2, "score.weight": 3}

    assert with_or_without_prefix(filtered, "model.norm", weights) == {"weight": 1}
    assert with_or_without_prefix(filtered, "score", weights) == {"weight": 3}
    assert with_or_without_prefix(filtered, "lm_head", weights) == {}


def test_an_embedding_has_no_rows_of_its_own() -> None:
    assert score_rows({}, head(HeadKind.EMBED), is_tied=True) is None


@pytest.mark.parametrize("lazily", [False, True])
def test_the_score_layer_as_it_is_stored(lazily: bool) -> None:
    stored = SCORE.bfloat16()

    found = score_rows({"score.weight": Lazy(stored) if lazily else stored}, head(HeadKind.SCORE), is_tied=False)

    assert found is not None
    assert found.dtype == torch.float32
    assert torch.equal(found, SCORE)


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize(
    ("is_tied", "has_vocabulary", "rows"),
    [(True, False, EMBEDDING), (True, True, EMBEDDING), (False, True, VOCABULARY)],
)
def test_yes_less_no_of_the_right_table(prefix: str, is_tied: bool, has_vocabulary: bool, rows: Tensor) -> None:
    """A tied model may have a copy of the table in its file, which transformers passes over."""
    weights = {f"{prefix}embed_tokens.weight": EMBEDDING, **({"lm_head.weight": VOCABULARY} if has_vocabulary else {})}

    found = score_rows(weights, ANSWER, is_tied=is_tied)

    assert found is not None
    assert torch.equal(found, (rows[7].float() - rows[2].float())[None])


def test_the_row_of_yes_alone() -> None:
    weights = {"model.embed_tokens.weight": EMBEDDING}
    found = score_rows(weights, head(HeadKind.ANSWER, yes_id=7), is_tied=True)

    assert found is not None
    assert torch.equal(found, EMBEDDING[7].float()[None])


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

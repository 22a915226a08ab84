"""Prompts that are left out of the pooling: against sentence-transformers' Pooling with include_prompt=False."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense
from transformers import AutoConfig, AutoModel

from engine.rows.with_torch import Pooling, RowModules
from engine.transformers.engine import TransformersEngine, load
from engine.types import PROMPT_TOKEN, Batch, OutputKind
from tests.engine.cpu.engines import difference, options
from tests.engine.rows.sentence_models import save_chain, text_of
from tests.engine.tiny_models import HIDDEN_SIZE, arbitrary, batch, save

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
PROMPT = (17, 90, 33)
SEQLENS = (7, 1, 30, 7, 57, 2)  # of the texts alone


def with_prompts(sequences: Sequence[Sequence[int]], lengths: Sequence[int]) -> Batch:
    """The first so many tokens of each are a prompt's."""
    types: list[int] = []
    for sequence, length in zip(sequences, lengths, strict=True):
        types += [PROMPT_TOKEN] * length + [0] * (len(sequence) - length)
    return batch(sequences, types)


def computed(loaded: TransformersEngine, some: Batch, kind: OutputKind) -> NDArray[np.float32]:
    loaded.submit(dataclasses.replace(some, outputs=kind))
    _, results = loaded.collect()
    assert isinstance(results, dict), results
    return results[kind].values


def pooled(loaded: TransformersEngine, some: Batch) -> NDArray[np.float32]:
    return computed(loaded, some, OutputKind.POOLED)


def check(mode: Any, folder: Path) -> None:
    reference = SentenceTransformer(str(folder), device="cpu")
    loaded = load(name="m", reason="", options=options(folder))
    texts = arbitrary(SEQLENS)
    # the second half without a prompt, in the same batch
    expected = np.stack(
        [reference.encode(text_of(text), prompt=f"{text_of(PROMPT)} ") for text in texts]
        + [reference.encode(text_of(text)) for text in texts]
    )
    sequences = [[*PROMPT, *text] for text in texts] + texts
    lengths = [len(PROMPT)] * len(texts) + [0] * len(texts)
    rows = pooled(loaded, with_prompts(sequences, lengths))
    assert rows.dtype == np.float32
    assert difference(rows, expected) <= 1e-5
    for number in (0, 1, 2, len(texts) + 1):
        alone = pooled(loaded, with_prompts(sequences[number : number + 1], lengths[number : number + 1]))
        assert difference(alone, expected[number : number + 1]) <= 1e-5
    whole = pooled(loaded, batch(sequences))
    assert difference(whole[len(texts) :], expected[len(texts) :]) <= 1e-5
    if mode != "lasttoken":
        assert difference(whole[: len(texts)], expected[: len(texts)]) > 1e-3
    loaded.close()


@pytest.mark.holds("Prompts")
@pytest.mark.parametrize("mode", [*MODES, MODES[::-1]], ids=str)
def test_each_pooling_leaves_prompts_out(mode: Any, tmp_path: Path) -> None:
    check(mode, save_chain(tmp_path / "model", mode, include_prompt=False))


@pytest.mark.parametrize("family", ["qwen3", "deberta-v2"])
def test_other_families_and_steps_after_the_pooling(family: str, tmp_path: Path) -> None:
    folder = save_chain(tmp_path / "model", "weightedmean", Dense(HIDDEN_SIZE, 9), family=family, include_prompt=False)
    check("weightedmean", folder)


@pytest.mark.holds("Prompts")
@pytest.mark.parametrize("mode", ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "last"])
def test_a_sequence_that_is_nothing_but_a_prompt_is_pooled_whole(mode: str) -> None:
    sequences = arbitrary((4, 1, 6))
    token_rows = torch.from_numpy(np.random.default_rng(0).normal(size=(11, 8)).astype(np.float32))
    whole = Pooling((mode,), RowModules())
    rows, expected = whole(token_rows, with_prompts(sequences, (4, 1, 2))), whole(token_rows, batch(sequences))
    assert torch.equal(rows[:2], expected[:2])
    assert torch.equal(rows[2], expected[2]) == (mode == "last")


@pytest.mark.parametrize("family", ["bert", "deberta-v2"])  # packed and padded
def test_the_model_is_told_types_without_flags(family: str, tmp_path: Path) -> None:
    bare = AutoConfig.from_pretrained(save(family, tmp_path / "bare"))
    bare.type_vocab_size = 2
    torch.manual_seed(0)
    AutoModel.from_config(bare).save_pretrained(tmp_path / "model")  # type: ignore[no-untyped-call]
    loaded = load(name="m", reason="", options=options(tmp_path / "model"))
    sequences, types = arbitrary((5, 5, 2)), np.array([0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1])
    flagged, plain = (batch(sequences, list(each)) for each in (types | PROMPT_TOKEN * (types == 0), types))
    rows, expected = (token_rows(loaded, some) for some in (flagged, plain))
    assert np.array_equal(rows, expected)
    assert difference(token_rows(loaded, batch(sequences)), expected) > 1e-3
    loaded.close()


def token_rows(loaded: TransformersEngine, some: Batch) -> NDArray[np.float32]:
    return computed(loaded, some, OutputKind.TOKENS)


def test_nothing_is_looked_at_where_no_types_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "diff", None)  # the first thing that would be done
    assert Pooling(("cls",), RowModules())(torch.ones(3, 2), batch([[5, 6, 7]])).tolist() == [[1, 1]]

"""Prompts that are left out of the pooling, beyond what tests/parity has of each pooling."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from engine.model.tasks import POOLINGS
from engine.rows.with_torch import Pooling, RowModules
from engine.transformers.engine import load
from engine.types import Batch, OutputKind
from tests.engine.cpu.engines import options
from tests.engine.engines import difference, rows
from tests.engine.tiny_models import arbitrary, batch, save
from wire.parts import PROMPT_TOKEN


def with_prompts(sequences: Sequence[Sequence[int]], lengths: Sequence[int]) -> Batch:
    """The first so many tokens of each are a prompt's."""
    marks: list[int] = []
    for sequence, length in zip(sequences, lengths, strict=True):
        marks += [PROMPT_TOKEN] * length + [0] * (len(sequence) - length)
    return batch(sequences, marks=marks)


@pytest.mark.holds("Prompts")
@pytest.mark.parametrize("mode", POOLINGS)
def test_a_sequence_that_is_nothing_but_a_prompt_is_pooled_whole(mode: str) -> None:
    sequences = arbitrary((4, 1, 6))
    token_rows = torch.from_numpy(np.random.default_rng(0).normal(size=(11, 8)).astype(np.float32))
    whole = Pooling((mode,), RowModules())
    rows, expected = whole(token_rows, with_prompts(sequences, (4, 1, 2))), whole(token_rows, batch(sequences))
    assert torch.equal(rows[:2], expected[:2])
    assert torch.equal(rows[2], expected[2]) == (mode == "last")


@pytest.mark.parametrize("family", ["bert", "deberta-v2"])  # packed and padded
def test_the_model_is_told_types_without_marks(family: str, tmp_path: Path) -> None:
    bare = AutoConfig.from_pretrained(save(family, tmp_path / "bare"))
    bare.type_vocab_size = 2
    torch.manual_seed(0)
    AutoModel.from_config(bare).save_pretrained(tmp_path / "model")  # type: ignore[no-untyped-call]
    loaded = load(name="m", reason="", options=options(tmp_path / "model"))
    sequences, types = arbitrary((5, 5, 2)), np.array([0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1])
    marks = [(PROMPT_TOKEN * each).tolist() for each in (types == 0, types * 0)]
    marked, plain = (batch(sequences, types.tolist(), marks=each) for each in marks)
    found, expected = (rows(loaded, some, OutputKind.TOKENS) for some in (marked, plain))
    assert np.array_equal(found, expected)
    assert difference(rows(loaded, batch(sequences), OutputKind.TOKENS), expected) > 1e-3
    loaded.close()


def test_nothing_is_looked_at_where_no_types_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "diff", None)  # the first thing that would be done
    assert Pooling(("cls",), RowModules())(torch.ones(3, 2), batch([[5, 6, 7]])).tolist() == [[1, 1]]

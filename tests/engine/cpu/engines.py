"""What the tests of the compiled engines share: loading one, and running batches through it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from engine.cpu import loading
from engine.cpu.engine import OpenVinoEngine
from engine.messages import LoadOptions
from engine.model import model_folder
from engine.model.model_folder import ModelFolder
from engine.model.tasks import (
    AnswerScore,
    Head,
    LateInteraction,
    SequenceScores,
    Task,
    TokenScores,
    TokenVectors,
    VocabularyWeights,
)
from engine.types import OutputKind, Results
from tests.engine import engines
from tests.engine.engines import load_options, results
from tests.engine.tiny_models import VOCAB_SIZE, batch

_TASKS: dict[type[Head], Task] = {
    SequenceScores: Task.CLASSIFY,
    TokenScores: Task.TOKEN_CLASSIFY,
    AnswerScore: Task.RERANK,
    VocabularyWeights: Task.SPARSE,
    TokenVectors: Task.LATE_INTERACTION,
}


def options(folder: Path, **others: Any) -> LoadOptions:
    return load_options(folder, **{"num_threads": 2, **others})


def load(folder: Path, **others: Any) -> OpenVinoEngine:
    return loading.load(name="m", reason="asked", options=options(folder, **others))


def load_with_heads(
    folder: Path,
    heads: tuple[Head, ...],
    *,
    bare: Path | None = None,
    late: LateInteraction | None = None,
    **others: Any,
) -> OpenVinoEngine:
    """Taken for a model with these heads, whatever its files say.

    bare: a folder that describes the same model, for one that gives embeddings beside what its heads give.
    """

    def taken(path: Path | str, **given: Any) -> ModelFolder:
        found = read(bare or path, **{**given, "task": Task.EMBED})
        task = Task.EMBED if bare else _TASKS[type(heads[0])]
        return dataclasses.replace(found, path=Path(path), task=task, heads=heads, late=late)

    read = model_folder.read
    with mock.patch.object(model_folder, "read", taken):
        return load(folder, **others)


def rows_of(folder: Path, sequences: Sequence[Sequence[int]], **others: Any) -> NDArray[np.float32]:
    """What an engine gives that is loaded for them alone."""
    loaded = load(folder, **others)
    rows = pooled(loaded, sequences)
    loaded.close()
    return rows


def pooled(loaded: OpenVinoEngine, sequences: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    return engines.rows(loaded, batch(sequences))


def both_ways(
    loaded: OpenVinoEngine, sequences: Sequence[Sequence[int]], outputs: OutputKind
) -> tuple[Results, Results]:
    """Computed together, and each alone and then joined."""
    together = results(loaded, dataclasses.replace(batch(sequences), outputs=outputs))
    each = [results(loaded, dataclasses.replace(batch([one]), outputs=outputs)) for one in sequences]
    joined = {}
    for kind, rows in together.items():
        offsets = None
        if rows.offsets is not None:
            counts = [len(one[kind].values) for one in each]
            offsets = np.cumsum([0, *counts], dtype=np.int32)
        joined[kind] = dataclasses.replace(
            rows, values=np.concatenate([one[kind].values for one in each]), offsets=offsets
        )
    return together, joined


def sparse(found: Results, count: int) -> NDArray[np.float32]:
    """Sparse rows as dense ones [B, V]."""
    rows = found[OutputKind.SPARSE]
    assert rows.offsets is not None
    assert rows.offsets.shape == (count + 1,)
    assert (rows.values[:, 1] != 0).all()
    dense = np.zeros((count, VOCAB_SIZE), np.float32)
    for number in range(count):
        entries = rows.values[rows.offsets[number] : rows.offsets[number + 1]]
        assert (np.diff(entries[:, 0]) > 0).all()
        dense[number, entries[:, 0].astype(int)] = entries[:, 1]
    return dense

"""The rows of engines text by text, in the form that references have."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.types import Engine, OutputKind, Rows
from tests.engine.engines import results
from tests.parity.references import Outputs
from tests.parity.texts import Text, packed


def compute(engine: Engine, texts: Sequence[Text], outputs: OutputKind) -> list[Outputs]:
    """What the engine makes of one batch, for each text."""
    found = results(engine, packed(texts, outputs))
    size = engine.info.vocab_size
    return [
        {kind: _of_text(rows, kind, number, vocab_size=size) for kind, rows in found.items()}
        for number in range(len(texts))
    ]


def _of_text(rows: Rows, kind: OutputKind, number: int, *, vocab_size: int) -> NDArray[np.float32]:
    assert rows.values.dtype == np.float32
    own: NDArray[np.float32]
    if rows.offsets is None:
        own = rows.values[number]
        return own
    own = rows.values[rows.offsets[number] : rows.offsets[number + 1]]
    return _whole(own, vocab_size) if kind is OutputKind.SPARSE else own


def _whole(entries: NDArray[np.float32], vocab_size: int) -> NDArray[np.float32]:
    """The row of the whole vocabulary that pairs of an entry's number and its weight stand for."""
    numbers = entries[:, 0].astype(np.int64)
    assert len(set(numbers.tolist())) == len(numbers)
    assert (entries[:, 1] != 0).all()
    row = np.zeros(vocab_size, np.float32)
    row[numbers] = entries[:, 1]
    return row

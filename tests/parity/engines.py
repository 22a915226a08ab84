"""The rows of engines text by text, in the form that references have."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.types import Engine, OutputKind
from tests.engine.engines import dense, results
from tests.parity.references import Outputs
from tests.parity.texts import Text, packed


def compute(engine: Engine, texts: Sequence[Text], outputs: OutputKind) -> list[Outputs]:
    """What the engine makes of one batch, for each text. Sparse rows are those of the whole vocabulary."""
    of_texts: dict[OutputKind, Sequence[NDArray[np.float32]]] = {}
    for kind, rows in results(engine, packed(texts, outputs)).items():
        assert rows.values.dtype == np.float32
        if kind is OutputKind.SPARSE:
            of_texts[kind] = list(dense(rows, engine.info.vocab_size))
        else:
            of_texts[kind] = list(rows.values) if rows.offsets is None else np.split(rows.values, rows.offsets[1:-1])
    return [{kind: rows[number] for kind, rows in of_texts.items()} for number in range(len(texts))]

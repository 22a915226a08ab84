"""The original of a BERT: numpy computes its rows, and its graph is built operation by operation."""

from pathlib import Path

import numpy as np

from engine.cpu.bert.graph import Graph
from engine.cpu.bert.reference import token_rows
from engine.cpu.bert.weights import Bert
from engine.cpu.executors import openvino
from engine.cpu.selftest import Reference
from engine.selftest.comparison import not_finite
from engine.selftest.sample_ids import Sequences


class Built:
    """See engine.cpu.converting.Original."""

    computed_by = "those that numpy computes"

    def __init__(self, model: Bert) -> None:
        self._model = model
        self.pad_id = 0 if model.padding_idx is None else model.padding_idx

    def reference(self, sequences: Sequences, *, hides_tokens: bool) -> Reference:
        """See engine.cpu.converting.Original."""
        assert not hides_tokens
        with np.errstate(all="ignore"):  # weights may be infinite
            rows = [token_rows(self._model, sequence) for sequence in sequences]
        if not all(np.isfinite(of_one).all() for of_one in rows):
            raise not_finite("transformers", "float32")  # it would give the same
        return Reference(sequences, rows)

    def write(self, target: Path, *, quantization: str) -> int:
        """See engine.cpu.converting.Original."""
        return openvino.save(Graph(self._model).build(), target, quantization=quantization)

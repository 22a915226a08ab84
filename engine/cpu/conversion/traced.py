"""The original of any model that transformers has a class for: it gives the rows, and OpenVINO traces it."""

from pathlib import Path

import torch

from engine.cpu.conversion.graph import Graph
from engine.cpu.conversion.references import compute_reference
from engine.cpu.conversion.tracing import quiet
from engine.cpu.executors import openvino
from engine.cpu.outputs import head_in_graph
from engine.cpu.selftest import Reference
from engine.machine.failures import one_line
from engine.model.model_folder import ModelFolder
from engine.selftest.sample_ids import Sequences
from engine.transformers.loading import load_model
from engine.transformers.state import State
from engine.types import ModelError


class Traced:
    """See engine.cpu.converting.Original."""

    computed_by = "transformers'"

    def __init__(self, folder: ModelFolder) -> None:
        """Raises ModelError if transformers can't load the model."""
        model = load_model(folder, dtype=torch.float32)
        self._model = Graph(model, head_in_graph(folder), hides_tokens=folder.hides_tokens)
        self._state = State(self._model)
        self._architecture = folder.architecture
        # RoBERTa and similar models number positions by the padding id
        self.pad_id = self._model.pad_id if folder.padding_idx is None else folder.padding_idx

    def reference(self, sequences: Sequences, *, hides_tokens: bool) -> Reference:
        """See engine.cpu.converting.Original."""
        with quiet():
            return compute_reference(self._model, self._state, sequences, hides_tokens=hides_tokens)

    def write(self, target: Path, *, quantization: str) -> int:
        """See engine.cpu.converting.Original. Raises ModelError if OpenVINO can't convert the model."""
        try:
            with quiet():
                self._model(**self._model.example())  # tracing runs it more than once, and BigBird changes at the first
                return openvino.save(openvino.traced(self._model), target, quantization=quantization)
        except ModelError:
            raise
        except Exception as error:  # tracers and converters raise anything on code that they do not support
            raise ModelError(f"openvino can't convert {self._architecture!r}: {one_line(error)}") from error

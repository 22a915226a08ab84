"""What the authors' code makes of one text, written down anew: their poolings and heads on the library's layers.

Shapes: S tokens of a sequence, D numbers of a row.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from engine.types import OutputKind
from tests.parity.repositories.facts import Head, Repository, Served
from tests.parity.repositories.folders import CLASSES, library_config
from tests.parity.texts import Text

OUTPUTS = {
    Head.POOLED: OutputKind.POOLED,
    Head.SCORES: OutputKind.LOGITS,
    Head.ANSWER: OutputKind.LOGITS,
    Head.SPLADE: OutputKind.SPARSE,
    Head.COLBERT: OutputKind.MULTI_VECTOR,
    Head.STATIC: OutputKind.POOLED,
}


class Reference:
    """A small model of one repository's form. small: the repository with the files of that model."""

    def __init__(self, small: Repository, folder: Path) -> None:
        assert isinstance(small.expected, Served)
        self._served = small.expected
        self._folder = folder
        files = small.files
        self._dense = [(path, files[path]) for path in sorted(files) if path.endswith("Dense/config.json")]
        self._table = small.table
        self._answers = small.answers
        self._model: Any = None
        if small.table is None:
            library_class = CLASSES[self._served.head]
            self._model = library_class.from_pretrained(folder, config=library_config(small), dtype=torch.float32)

    def __call__(self, text: Text) -> NDArray[np.float32]:
        """Its output: a row, scores, or vectors of tokens."""
        with torch.inference_mode():
            rows: NDArray[np.float32] = self._output(text).float().numpy()
        return rows

    def _output(self, text: Text) -> Tensor:
        if self._table is not None:
            name, inside = self._table
            row = load_file(self._folder / inside / "model.safetensors")[name][list(text.ids)].mean(dim=0)
            return row / row.norm() if self._served.is_normalized else row
        types = {} if text.types is None else {"token_type_ids": torch.tensor([text.types])}
        output = self._model(input_ids=torch.tensor([text.ids]), **types)
        match self._served.head:
            case Head.POOLED:
                return self._pooled(output.last_hidden_state[0])
            case Head.SCORES:
                logits: Tensor = output.logits[0]
                return logits
            case Head.SPLADE:
                return torch.log1p(torch.relu(output.logits[0])).amax(dim=0)
            case Head.COLBERT:
                return functional.normalize(self._projected(output.last_hidden_state[0]), dim=-1)
            case _:
                return self._answer(output.logits[0, -1])

    def _answer(self, logits: Tensor) -> Tensor:
        """yes minus no, of the logits [V] after the last token: the log of how much likelier yes is."""
        words = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        yes, no = (words.token_to_id(token) for token in self._answers or ())
        return (logits[yes] - (0.0 if no is None else logits[no]))[None]

    def _projected(self, rows: Tensor) -> Tensor:
        """By the layers after the last, which are beside the model; Stanford's one is in it. rows: [S, D]"""
        if not self._dense:
            return rows @ load_file(self._folder / "model.safetensors")["linear.weight"].T
        for path, config in self._dense:
            tensors = load_file(self._folder / path.replace("config.json", "model.safetensors"))
            made = functional.linear(rows, tensors["linear.weight"], tensors.get("linear.bias"))
            made = torch.tanh(made) if config["activation_function"].endswith("Tanh") else made
            rows = made + rows @ tensors["residual.weight"].T if config.get("use_residual") else made
        return rows

    def _pooled(self, rows: Tensor) -> Tensor:
        """rows: [S, D]"""
        match self._served.pooling:
            case "cls":
                row = rows[0]
            case "mean":
                row = rows.sum(dim=0) / len(rows)
            case _:
                row = rows[-1]
        if self._dense:
            row = self._projected(row)
        return row / row.norm() if self._served.is_normalized else row

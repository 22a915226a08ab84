"""Makes adapters with PEFT itself, which is also what they are held against."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftConfig, get_peft_model
from transformers import AutoModel


class Adapted:
    """A model of the library with an adapter that changes its rows by much, saved in a folder of its own."""

    def __init__(self, base: Path, config: PeftConfig, folder: Path, *, purpose: Any = AutoModel, **others: Any):
        """base: the model's folder; purpose: one of the library's automatic classes; others: for its loading."""
        torch.manual_seed(3)
        loaded: Any = purpose.from_pretrained(base, dtype=torch.float32, **others)
        self._model = get_peft_model(loaded, config).eval()
        with torch.no_grad():  # what begins without effect, as B, magnitudes and factors do, has one afterwards
            for parameter in self._model.parameters():
                if parameter.requires_grad:
                    parameter.mul_(1 + 0.3 * torch.randn(parameter.shape))
                    parameter.add_(0.1 * torch.randn(parameter.shape))
        self._model.save_pretrained(str(folder))

    def token_rows(self, sequence: Sequence[int]) -> NDArray[np.float32]:
        """[S, D]"""
        return self._of(sequence, "last_hidden_state")

    def scores(self, sequence: Sequence[int]) -> NDArray[np.float32]:
        """Raw scores [L]."""
        return self._of(sequence, "logits")

    def _of(self, sequence: Sequence[int], name: str) -> NDArray[np.float32]:
        with torch.inference_mode():
            output = self._model(input_ids=torch.tensor([list(sequence)]))
        rows: NDArray[np.float32] = output[name][0].numpy()
        return rows

"""What tests of heads share: a model with one, its scores, and how far they are from the reference's."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from engine.model import model_folder
from engine.model.model_folder import ModelFolder
from engine.model.tasks import Head, Task
from engine.transformers.loading import load_model
from engine.transformers.selftest import ForwardChoice, choose_forward
from engine.types import OutputKind, Rows
from tests.engine import engines
from tests.engine.tiny_models import batch

SEQLENS = (5, 17, 1, 30, 9, 9, 13, 1)


def read(folder: Path, *heads: Head) -> ModelFolder:
    return dataclasses.replace(model_folder.read(folder, task="embed"), task=Task.CLASSIFY, heads=heads)


def choose(folder: Path, *heads: Head, prepacks: bool = False, dtype: torch.dtype = torch.float32) -> ForwardChoice:
    found = read(folder, *heads)
    return choose_forward(load_model(found, dtype=dtype), found, prepacks=prepacks)


def compute(
    choice: ForwardChoice, kind: OutputKind, sequences: Sequence[Sequence[int]], types: Sequence[int] | None = None
) -> Rows:
    some = batch(sequences, types)
    rows = choice.makers[kind](choice.forward(some), some)
    assert rows.values.dtype == np.float32
    return rows


def refusal(folder: Path, *heads: Head) -> str:
    """The message, which must be one line."""
    return engines.refusal(lambda: choose(folder, *heads))

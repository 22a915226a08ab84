"""What engines are loaded with in tests: small limits, one thread, on the CPU unless something else is asked for."""

import dataclasses
from pathlib import Path
from typing import Any

from engine.messages import FakeOptions, LoadOptions

_FAKE = FakeOptions(dimensions=16, vocab_size=1000)
_OF_FAKE = {field.name for field in dataclasses.fields(FakeOptions)}


def load_options(folder: Path, **others: Any) -> LoadOptions:
    """For the model in this folder; others: fields of LoadOptions. In float32: the same on any CPU."""
    fixed = LoadOptions(device="cpu", path=str(folder), dtype="float32", max_num_tokens=4096, max_num_seqs=64)
    return dataclasses.replace(fixed, **others)


def fake_options(**others: Any) -> LoadOptions:
    """For the fake engine; others: fields of LoadOptions and of FakeOptions."""
    fake = dataclasses.replace(_FAKE, **{name: value for name, value in others.items() if name in _OF_FAKE})
    rest = {name: value for name, value in others.items() if name not in _OF_FAKE}
    fixed = LoadOptions(device="cpu", max_seqlen=64, max_num_tokens=256, max_num_seqs=8, fake=fake)
    return dataclasses.replace(fixed, **rest)

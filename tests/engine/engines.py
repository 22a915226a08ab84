"""Engines as tests load them (with small limits, one thread, on the CPU unless something else is asked for), what they
make of a batch, and the one line with which a model is refused.
"""

import dataclasses
import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from engine import registry
from engine.messages import LoadOptions
from engine.offer import offer_of
from engine.selftest import selfcheck
from engine.selftest.sample_ids import Sequences
from engine.types import Batch, Engine, ModelError, ModelInfo, OutputKind, Results, Rows, compute, main_output
from wire.dataclass_json import to_json

_MODULES = {
    "transformers": "engine.transformers.engine",
    "openvino": "engine.cpu.loading",
    "static": "engine.static",
    "fused": "engine.fused.start",
}


_OWN = {engine: {field.name for field in dataclasses.fields(offer_of(engine).options)} for engine in registry.ENGINES}


def changed(options: LoadOptions, **others: Any) -> LoadOptions:
    """others: fields of LoadOptions and of engines' own options."""
    own = dict(options.own)
    for engine, names in _OWN.items():
        if given := {name: to_json(others.pop(name)) for name in names & others.keys()}:
            own[engine] = own.get(engine, {}) | given
    return dataclasses.replace(options, own=own, **others)


def load_options(folder: Path, **others: Any) -> LoadOptions:
    """For the model in this folder; others: as in `changed`. In float32: the same on any CPU."""
    fixed = LoadOptions(device="cpu", path=str(folder), dtype="float32", max_num_tokens=4096, max_num_seqs=64)
    return changed(fixed, **{"compiles_in_child": False, **others})


def fake_options(**others: Any) -> LoadOptions:
    """For the fake engine; others: as in `changed`."""
    fixed = LoadOptions(device="cpu", max_seqlen=64, max_num_tokens=256, max_num_seqs=8)
    return changed(fixed, **{"fake_dim": 16, "vocab_size": 1000, **others})


def model_info(**others: Any) -> ModelInfo:
    """Of an engine that a test makes up; others: its fields."""
    fixed = {
        **{"name": "m", "engine": "fused", "reason": "asked", "outputs": OutputKind.POOLED | OutputKind.TOKENS},
        **{"dimensions": 2, "max_seqlen": 512, "vocab_size": 10, "pooling": "cls", "normalize": False},
        **{"dtype": "float32", "device": "cpu", "architecture": ""},
    }
    return ModelInfo(**{**fixed, **others})


def load(name: str, folder: Path, **options: Any) -> Engine:
    """One of _MODULES; options: fields of LoadOptions. Raises ModelError."""
    module = importlib.import_module(_MODULES[name])
    loaded: Engine = module.load(name="m", reason="asked", options=load_options(folder, **options))
    return loaded


def rows_of(loaded: Engine, sequences: Sequences) -> NDArray[np.float32]:
    """Rows [B, D] of the engine's main output, in as many batches as its limits require."""
    kind = main_output(loaded.info.outputs)
    return selfcheck.results_of(loaded, sequences, kind)[kind].values


def results(loaded: Engine, one: Batch) -> Results:
    """Of one batch, with nothing else in the engine."""
    found = compute(loaded, one)
    assert isinstance(found, dict), found
    assert set(found) == set(one.outputs)
    return found


def rows(loaded: Engine, one: Batch, kind: OutputKind = OutputKind.POOLED) -> NDArray[np.float32]:
    """Those of this kind alone."""
    values = results(loaded, dataclasses.replace(one, outputs=kind))[kind].values
    assert values.dtype == np.float32
    return values


def dense(rows: Rows, size: int) -> NDArray[np.float32]:
    """[B, size] of ragged pairs [N, 2] of an entry and its weight, each once and in order."""
    assert rows.offsets is not None
    assert rows.values.dtype == np.float32
    assert rows.offsets.dtype == np.int32
    assert (rows.offsets[0], rows.offsets[-1]) == (0, len(rows.values))
    found = np.zeros((len(rows.offsets) - 1, size), np.float32)
    for number, (start, end) in enumerate(itertools.pairwise(rows.offsets.tolist())):
        index, weights = rows.values[start:end].T
        assert (weights != 0).all()
        assert (np.diff(index) > 0).all()
        found[number, index.astype(np.int64)] = weights
    return found


def difference(found: NDArray[np.float32], expected: ArrayLike) -> float:
    """The largest, relative to the largest value where that is above 1."""
    wanted = np.asarray(expected)
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max()))


def refusal(action: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """The message with which this is refused, which must be one line."""
    with pytest.raises(ModelError) as caught:
        action(*arguments, **named)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message

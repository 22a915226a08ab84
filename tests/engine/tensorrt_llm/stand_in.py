"""The stand-in for tensorrt_llm as a test puts it on a path, and the engine loaded on it."""

import contextlib
import dataclasses
import importlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.machine.cuda_driver import Gpu
from engine.messages import LoadOptions
from engine.tensorrt_llm import engine as tensorrt_llm_engine
from engine.tensorrt_llm.engine import TensorrtLlmEngine
from engine.types import EngineError, Results, main_output
from tests.engine.engines import changed
from tests.engine.tiny_models import batch

PACKAGE = "tensorrt_llm"
FAULTS = "FAKE_TENSORRT_LLM"
H200 = Gpu(0, "NVIDIA H200", (9, 0), 150_754_820_096)
FOLDER = Path(__file__).resolve().parents[2] / "tensorrt_llm_fake"
_INFO = f"{PACKAGE}-1.4.0rc1.dist-info"


def place(folder: Path, version: str = "1.4.0rc1") -> Path:
    """What an interpreter would find it by, with this version in its metadata."""
    if version == "1.4.0rc1":
        return FOLDER
    copied = folder / "site-packages"
    shutil.copytree(FOLDER / PACKAGE, copied / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    info = copied / _INFO.replace("1.4.0rc1", version)
    info.mkdir()
    (info / "METADATA").write_text((FOLDER / _INFO / "METADATA").read_text().replace("1.4.0rc1", version))
    return copied


@contextlib.contextmanager
def library(*faults: str, where: Path = FOLDER) -> Iterator[None]:
    """It can be imported within, anew, and fails as it is told; afterwards nothing of it is left."""
    environment = dict(os.environ)
    _forget()
    os.environ[FAULTS] = ",".join(faults)
    sys.path.insert(0, str(where))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(where))
        _forget()
        os.environ.clear()
        os.environ.update(environment)


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def load(folder: Path, **others: Any) -> TensorrtLlmEngine:
    """With small limits; others: more of the engine's options."""
    fixed = LoadOptions(
        path=str(folder), device="cuda:0", gpu=H200, quantization="auto", max_num_tokens=256, max_num_seqs=16
    )
    options = changed(fixed, **others)
    return tensorrt_llm_engine.load(name="m", reason="a test", options=options)


def answer(engine: TensorrtLlmEngine, sequences: Sequence[Sequence[int]], **others: Any) -> Results | EngineError:
    """One batch; others: more of it."""
    outputs = main_output(engine.info.outputs)
    engine.submit(dataclasses.replace(batch(sequences), outputs=outputs, **others))
    return engine.collect()[1]


def rows(engine: TensorrtLlmEngine, sequences: Sequence[Sequence[int]], **others: Any) -> NDArray[np.float32]:
    """[B, L] of one batch that is computed."""
    results = answer(engine, sequences, **others)
    assert not isinstance(results, EngineError), results
    values = results[main_output(engine.info.outputs)].values
    assert values.dtype == np.float32
    return values


def graph_runner(engine: TensorrtLlmEngine) -> Any:
    """What records and replays graphs."""
    return engine._encode.__self__.llm._encoder_executor.model_engine.encoder_cuda_graph_runner  # type: ignore[attr-defined]

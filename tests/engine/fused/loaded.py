"""Fused engines as its tests load them: on the CPU, with small batches."""

from functools import partial
from pathlib import Path
from typing import Any

from engine.fused import start
from engine.fused.engine import FusedEngine
from engine.messages import LoadOptions
from tests.engine.engines import load_options


def options(folder: Path, cache_dir: Path | None = None, **others: Any) -> LoadOptions:
    """Of a load; others: as in load_options."""
    kept = None if cache_dir is None else str(cache_dir)
    return load_options(folder, **{"cache_dir": kept, "max_num_tokens": 512, **others})


def load(folder: Path, cache_dir: Path | None = None, **others: Any) -> FusedEngine:
    """A whole engine. Raises ModelError."""
    return start.load(name="m", reason="asked", options=options(folder, cache_dir, **others))


fp8_options, load_fp8 = partial(options, quantization="fp8"), partial(load, quantization="fp8")

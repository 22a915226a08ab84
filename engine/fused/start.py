"""Loads a model for engine.registry and logs how long each part of it took. Imports torch only then."""

import contextlib
import logging
import time
from collections.abc import Iterator

from engine.fused.engine import FusedEngine
from engine.messages import LoadOptions
from engine.types import OnStage, untold

logger = logging.getLogger("embedline.engine")


def load(*, name: str, reason: str, options: LoadOptions, on_stage: OnStage = untold) -> FusedEngine:
    """A fused engine that has passed its self-test. Raises ModelError with one line."""
    phases = Phases(on_stage)
    with phases("import"):
        from engine.fused import loading
    loaded = loading.load(phases, name=name, reason=reason, options=options)
    logger.info("%s %s", name, phases)
    for note in loaded.engine.info.notes:
        logger.info("%s: %s", name, note)
    if options.quantization == "fp8" and loaded.outcome is not None and loaded.outcome.reverted:
        num_plain, num_quantized = len(loaded.outcome.reverted), len(loaded.outcome.quantized)
        logger.warning(
            "%s: FP8 was requested, but %d of %d layers are not quantized", name, num_plain, num_plain + num_quantized
        )
    return loaded.engine


class Phases:
    """How long each part of loading took. Each is a stage, told as it begins."""

    def __init__(self, on_stage: OnStage = untold) -> None:
        self._on_stage = on_stage
        self._began = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """The time in the `with` block counts for this part; a part may come more than once."""
        self._on_stage(name)
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self._seconds.items())
        return f"loaded in {time.perf_counter() - self._began:.1f} s: {parts}"

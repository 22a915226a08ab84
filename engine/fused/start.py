"""Loads a model for engine.registry and logs how long each part of it took. Imports torch only then."""

import logging

from engine.fused.engine import FusedEngine
from engine.fused.phases import Phases
from engine.messages import LoadOptions

logger = logging.getLogger("embedline.engine")


def load(*, name: str, reason: str, options: LoadOptions) -> FusedEngine:
    """Raises ModelError with one line."""
    phases = Phases()
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

"""A small batch whose rows an engine knows from its start. Computed again, it shows whether the engine is sound."""

import numpy as np

from engine.selftest.comparison import TOLERANCE, largest_difference
from engine.types import (
    Batch,
    Engine,
    EngineError,
    EngineErrorKind,
    ModelError,
    OutputKind,
    Results,
    compute,
    main_output,
)

_SEQLENS = (1, 5, 5, 16)  # tokens, as the first batch of the warm-up has
# What is tolerated between two runs of one engine: wider than rounding, since mini-batches may be cut in another way
# the second time, and far below what damaged weights or a broken device give.
_MIN_TOLERANCE = 1e-3
_MAX_TOLERANCE = 0.3


class Canary:
    """The batch, its rows, and how much they may differ."""

    def __init__(self, engine: Engine) -> None:
        """Computes it for the first time. The engine must be warm and idle. Raises ModelError if that fails."""
        info = engine.info
        cu_seqlens = np.cumsum([0, *(min(seqlen, engine.limits.max_seqlen) for seqlen in _SEQLENS)], dtype=np.int32)
        token_ids = np.arange(cu_seqlens[-1], dtype=np.int32) % info.vocab_size
        self.batch = Batch(info.name, main_output(info.outputs), token_ids, cu_seqlens)
        results = compute(engine, self.batch)
        if isinstance(results, EngineError):
            raise ModelError(f"the canary failed: {results}")
        self._expected = results
        self._tolerance = max(_MIN_TOLERANCE, TOLERANCE.get(info.dtype, _MAX_TOLERANCE))

    def judge(self, results: Results | EngineError) -> EngineError | None:
        """What is wrong with the rows of a later run; None if they are as they were."""
        if isinstance(results, EngineError):
            return EngineError(results.kind, f"the canary failed: {results}")
        for kind, expected in self._expected.items():
            found = results[kind].values
            if kind is OutputKind.SPARSE and found.shape != expected.values.shape:
                continue  # a weight that rounds to zero is left out
            scale = float(np.abs(expected.values).max(initial=0)) or 1.0
            difference = largest_difference(found, expected.values, scale=scale)
            if not difference <= self._tolerance:
                what = f"the canary's {kind.name} rows differ by {difference:.3g} of their largest value"
                return EngineError(EngineErrorKind.FAILED, f"{what} from those that the engine gave at its start")
        return None

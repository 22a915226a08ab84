"""What the scheduler wants done. Whoever drives it does it at once, in order."""

from dataclasses import dataclass

from batch_manager.batches import Batch, Slice
from batch_manager.messages import Refusal


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send this batch to this engine."""

    engine_id: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class Deliver:
    """The rows of these sequences are in, from sequence `at` of the finished batch on."""

    piece: Slice
    at: int
    is_last: bool  # the request has all its rows now


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request gets no rows, and is no longer known."""

    request_id: int
    reason: Refusal
    index: int = -1  # of the sequence that is to blame
    retry_after: float = 0.0  # seconds


Effect = Dispatch | Refuse

"""What the scheduler wants done."""

from dataclasses import dataclass

from batch_manager.messages import Refusal
from batch_manager.scheduling.batches import Batch, Slice
from batch_manager.scheduling.health import Loss


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


@dataclass(frozen=True, slots=True)
class Probe:
    """Have this engine compute its canary; the batch is answered like any other, without rows."""

    engine_id: int
    batch: Batch
    num_failures: int  # batches in a row that failed on it; 0 = the canary is a matter of routine


@dataclass(frozen=True, slots=True)
class Restart:
    """This engine is lost though its process runs: have the process end."""

    engine_id: int
    loss: Loss


# What the scheduler wants done. Whoever drives it does it at once, in order.
Effect = Dispatch | Refuse | Probe | Restart

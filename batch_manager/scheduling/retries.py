"""What becomes of a batch that gives no rows. Changes a Model; the scheduler refuses what is returned.

- It failed and the engine goes on: the engine may be sick (see `health`), so the batch as it is goes to another engine
  of the model. Where there is none, or where it fails again, its halves are tried as batches of their
  own, before new work of their class, and halves of those; a sequence that failed alone on two engines, or on the only
  one, is refused. So a sequence of a batch of n fails at most 2 log2(n) + 4 times. A batch that is too large for the
  memory is halved at once.
- Its engine died while the batch was only staged, or was restarted for failings of its own: nobody is suspected, its
  sequences wait again, at the front.
- Its engine died while the batch was being computed (where batches overlap, see `EngineLimits`, that may be any that
  it held): any of its n sequences may be the cause. They become suspects, in groups of about the square root of n, or
  alone if they are few. Suspects have their engine to themselves (`Engine.has_room`, `may_be_suspect`), so that the
  next death is their doing. If a group is computed, it has its rows and is cleared. If its engine dies, each of it is
  tried alone; what is alone at a death is refused as poison. One culprit among 1,024 costs three deaths and at most 64
  batches. Trying each alone would cost two deaths and 1,024 batches, halving eleven deaths and 20 batches.
- Suspects take turns with the other work of their class (`Backlog`), so that neither waits for all of the other.
Whatever is tried again is refused instead if its deadline has come or its client has left.
"""

import math
from collections.abc import Sequence

from batch_manager.scheduling.batches import Batch, Slice, by_class, halves, num_seqs, parts
from batch_manager.scheduling.engines import Engine
from batch_manager.scheduling.model import Model
from engine.types import EngineErrorKind

# Sequences that are tried one by one. With more, an engine that is killed from outside is often killed while an
# innocent one is alone with it.
_FEW = 16


def after_failure(model: Model, batch: Batch, *, engine: Engine, kind: EngineErrorKind) -> list[Slice]:
    """A batch failed on this engine, which goes on. Returns the sequences that have had their tries."""
    pieces = model.reclaim([batch])
    if not pieces:
        return []
    is_too_large = kind == EngineErrorKind.OUT_OF_MEMORY and batch.num_seqs > 1
    other = None if is_too_large else _another(model, batch, engine)
    if other is not None:
        model.pass_on(batch.elsewhere(pieces, failed_on=engine.engine_id), other)
        return []
    if batch.num_seqs == 1:
        return pieces
    model.retry([Batch(part) for part in halves(pieces)])
    return []


def _another(model: Model, batch: Batch, engine: Engine) -> Engine | None:
    """The engine with the least to do that this batch has not been on, by preference one that is trusted; None after
    two, or where there is no other."""
    if batch.failed_on is not None:
        return None
    others = (one for one in model.engines if one is not engine and one.fits(batch))
    return min(others, key=lambda one: (one.health.is_suspected, one.load(None)), default=None)


def after_death(model: Model, computing: Sequence[Batch], staged: Sequence[Batch]) -> list[Slice]:
    """An engine is gone that held these batches. Returns the sequences that were alone with it when it died."""
    model.requeue(model.reclaim(batch for batch in staged if not batch.is_suspect))
    to_blame: list[Slice] = []
    suspects = [model.reclaim([batch]) for batch in staged if batch.is_suspect]
    for batch in computing:
        pieces = model.reclaim([batch])
        if batch.is_suspect and batch.num_seqs == 1:
            to_blame += pieces
        elif batch.is_suspect:
            suspects += parts(pieces, 1)
        else:
            suspects += [group for its_class in by_class(pieces) for group in _groups(its_class)]
    model.retry([Batch(group, is_suspect=True) for group in suspects if group])
    return to_blame


def _groups(pieces: Sequence[Slice]) -> list[list[Slice]]:
    count = num_seqs(pieces)
    return parts(pieces, 1 if count <= _FEW else math.isqrt(count - 1) + 1)

"""What becomes of a batch that gives no rows. Changes a Model; the scheduler refuses what is returned.

- It failed and the engine goes on: its halves are tried as batches of their own, before new work of their class;
  halves of those; a sequence that fails alone is refused. The other sequences get their rows.
- Its engine died while the batch was only staged: nobody suspects it, its sequences wait again, at the front.
- Its engine died while the batch was being computed (where batches overlap, see `EngineLimits`, that may be any that it
  held): any sequence in it may be the cause, so each becomes a suspect, a batch of its own. A suspect has its engine to
  itself (`Engine.has_room`, `may_be_suspect`), so that the next death is its own doing: then it is refused as poison.
  If it is computed, it has its row and is cleared. Halving, as above, would cost a death for each step; this costs one
  forward a sequence.
- Suspects take turns with the other work of their class (`Backlog`), so that neither waits for all of the other.
Whatever is tried again is refused instead if its deadline has come or its client has left.
"""

from collections.abc import Sequence

from batch_manager.batches import Batch, Slice, halves, singles
from batch_manager.model import Model


def after_failure(model: Model, batch: Batch) -> list[Slice]:
    """A batch failed, and its engine goes on. Returns the sequences that have had their tries."""
    pieces = model.reclaim([batch])
    if batch.num_seqs == 1:
        return pieces
    model.retry([Batch(part) for part in halves(pieces)])
    return []


def after_death(model: Model, computing: Sequence[Batch], staged: Sequence[Batch]) -> list[Slice]:
    """An engine died that held these batches. Returns the sequences that were alone with it."""
    model.requeue(model.reclaim(staged))
    to_blame: list[Slice] = []
    alone: list[Batch] = []
    for batch in computing:
        pieces = model.reclaim([batch])
        if batch.is_suspect:
            to_blame += pieces
        else:
            alone += [Batch([piece], is_suspect=True) for piece in singles(pieces)]
    model.retry(alone)
    return to_blame

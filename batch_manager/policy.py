"""The settings of one batch manager. Knows no engine; what an engine can take comes with its READY."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How batches are sized and shared. Seconds and tokens; see docs/ARCHITECTURE.md for how to choose them."""

    max_batch_tokens: int | None = None  # None = from where on each engine gains nothing from more, as it measured
    # Below this, smaller batches save no time worth having; an engine whose fixed cost alone is above the
    # allowed seconds would otherwise be driven down to one sequence a batch.
    min_batch_tokens: int = 256
    # Interactive work is about while it waits and for this long after it last came: the batch that a
    # query has to wait for was packed before the query arrived.
    interactive_memory: float = 1.0
    bulk_share: float = 0.3  # of each batch while interactive work waits too
    engine_restart_grace: float = (
        5.0  # how long work waits for a model that has no engine, also after the manager's own start
    )
    retry_after: float = 5.0  # told to whoever is refused for want of an engine

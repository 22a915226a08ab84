"""What a job asks of a database."""

from typing import Protocol

from server.backfill.errors import BackfillError
from server.backfill.parts import Content
from server.backfill.plan import Plan


class SinkAway(BackfillError):
    """The database can't be reached, or refuses, now; later it may not."""


class Sink(Protocol):
    """A place for rows in a database, by their ids: what is put again overwrites. One thread's at a time."""

    @property
    def where(self) -> str:
        """The place in words, without user and password. The manifest has it."""

    def begin(self, plan: Plan, *, may_create: bool) -> None:
        """Once, before the first `put`. Raises RefusedJob where the place has another shape, or is not there and may
        not be made."""

    def put(self, content: Content) -> None:
        """All rows of a shard; on return they outlive whatever the database outlives. Raises SinkAway, and
        BackfillError where trying again is of no use."""

    def num_rows(self) -> int:
        """That are there, of whichever job. Raises BackfillError."""

    def close(self) -> None:
        """Let go of the connection."""

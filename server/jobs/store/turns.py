"""Whose turn it is among the owners that share something: who has least of it goes first, so nobody waits for another.

An owner's own order is another matter: it is kept within its turns.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Turns:
    """How matters stand.

    held    how much each owner has now, who had its turn longest ago first; who is not named has nothing
    room    how much more an owner may get; who is not named, any number
    """

    held: Mapping[str, int] = field(default_factory=dict)
    room: Mapping[str, int] = field(default_factory=dict)

    def given(self, waiting: Iterable[tuple[str, float]], first: Callable[[str], T | None]) -> Iterator[T]:
        """What is to be taken, one after another: take each before you ask for the next.

        waiting  the owners that wait, each with what its oldest is ordered by
        first    an owner's first now; None = it has no more
        """
        places = {owner: place for place, owner in enumerate(self.held, 1)}
        later = itertools.count(len(places) + 1)
        room: dict[str, float] = dict(self.room)
        line = [(self.held.get(owner, 0), places.get(owner, 0), since, owner) for owner, since in waiting]
        heapq.heapify(line)
        while line:
            held, _, since, owner = heapq.heappop(line)
            if (left := room.get(owner, math.inf)) > 0 and (found := first(owner)) is not None:
                yield found
                room[owner] = left - 1
                heapq.heappush(line, (held + 1, next(later), since, owner))

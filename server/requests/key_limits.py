"""The limits of API keys: their places on the shared page, their shares of the waiting work, and their tokens a minute.

A key has the same place for all frontends. There they count what waits of it, by which batch managers let keys take
turns, and what it has sent. Each frontend counts what it let in, by the minutes of a clock that all processes of a
machine share, and all of them read the sum. So several frontends hold one ceiling without asking each other, however a
client's connections fall. The last sixty seconds are taken as this minute and, of the one before, as much as has not
passed.
"""

import hashlib
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.settings.api_keys import ApiKey
from wire.page import Page

_LONG_AGO = -2  # a minute that is over, and the one after it too
_MINUTE = 60.0  # seconds


class KeyPlaces:
    """The page itself says whose each place is. So a frontend that was restarted, or has missed a change of the key
    file, finds what the others have."""

    def __init__(self, page: Page) -> None:
        self._page = page

    @property
    def num_places(self) -> int:
        """The number of places."""
        return self._page.num_keys

    def of(self, names: Sequence[str]) -> dict[str, int]:
        """The place of each of these keys, which are all that there are now.

        A key without one takes a place that nobody ever had, or else that of a key that is gone. If there are more keys
        than places, the last place is for several.
        """
        hashes = {name: _hash(name) for name in names}
        with self._page.locked():
            held = self._page.key_names.tolist()
            places = {one: place for place, one in enumerate(held) if one}
            is_taken = set(hashes.values())
            free = [place for place, one in enumerate(held) if one not in is_taken]
            unused = deque(sorted(free, key=lambda place: held[place] != 0))
            for one in hashes.values():
                if one not in places and unused:
                    places[one] = unused.popleft()
                    self._page.key_names[places[one]] = one
                    self._page.spent_minute[:, places[one]] = _LONG_AGO  # another key has spent that
            return {name: places.get(one, self.num_places - 1) for name, one in hashes.items()}

    def owner(self, place: int) -> int:
        """A number for the key whose place it is."""
        return int(self._page.key_names[place])


def _hash(name: str) -> int:
    """A hash of 63 bits, never 0."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1 or 1


@dataclass(frozen=True, slots=True)
class KeyShare:
    """One key."""

    index: int  # its place on the shared page, and what batch managers know it by
    weight: float = 1.0
    tokens_per_minute: int | None = None  # None = no ceiling
    owner: int = 0  # what its place says of whose it is, as long as it is not another key's


ANYBODY = KeyShare(0)  # where no request needs a key


@dataclass(frozen=True, slots=True)
class Turn:
    """The place of a key among those that have work here now."""

    ahead: float  # what part of the waiting tokens goes before the end of its own, from 0 to 1
    of_engines: float  # the part of the engines that is its own, from 0 to 1
    is_over: bool  # whether it has more than that part of what is waiting


class KeyShares:
    """The shares of all keys. One that is not known counts as the first."""

    def __init__(self, keys: Sequence[ApiKey], places: KeyPlaces) -> None:
        self._places = places
        self._by_name: dict[str, KeyShare] = {}
        self._weights: NDArray[np.float64] = np.ones(places.num_places)  # by place
        if keys:
            self.renew(keys)

    def renew(self, keys: Sequence[ApiKey]) -> None:
        """Have these keys from now on."""
        places = self._places.of([key.name for key in keys])
        self._by_name = {
            key.name: KeyShare(place, key.weight, key.tokens_per_minute, self._places.owner(place))
            for key, place in ((key, places[key.name]) for key in keys)
        }
        for share in self._by_name.values():
            self._weights[share.index] = share.weight

    @property
    def are_several(self) -> bool:
        """Whether there may be anything to share. Never changes, so that what was counted is uncounted too."""
        return len(self._weights) > 1

    def of(self, name: str) -> KeyShare:
        """The share of the key with this name; "" where none is needed."""
        return self._by_name.get(name, ANYBODY)

    def turn(self, key: KeyShare, num_tokens: int, queued: NDArray[np.int64]) -> Turn:
        """The place of a key that asks for so many tokens more; `queued` are those of each key, int64 [K].

        Batch managers let keys take turns by weight, so until a key's last token is computed, each other key gets as
        much in proportion, or all it has if that is less.
        """
        weights = self._weights
        own = int(queued[key.index]) + num_tokens
        total = int(queued.sum())
        ahead = float(np.minimum(queued, weights * (own / key.weight)).sum())
        active = queued > 0
        active[key.index] = True
        of_engines = key.weight / float(weights[active].sum())
        return Turn(ahead / total if total else 1.0, of_engines, int(queued[key.index]) > of_engines * total)


@dataclass(frozen=True, slots=True)
class Allowance:
    """The tokens that a key may send now."""

    limit: int  # tokens a minute
    remaining: int  # tokens, of those
    reset_seconds: float  # until all of them remain, if it sends nothing


class KeyCeilings:
    """The tokens that keys have spent, as one frontend sees and writes it."""

    def __init__(self, page: Page, *, frontend: int) -> None:
        self._minutes, self._tokens, self._before = page.spent_minute, page.spent_tokens, page.spent_before
        self._owners = page.key_names
        self._frontend = frontend

    def seconds_until_room(self, key: KeyShare, num_tokens: int, now: float) -> float:
        """The seconds until the key may send so many tokens, 0 if it may now. They must be no more than its ceiling."""
        assert key.tokens_per_minute is not None
        minute, passed = int(now // _MINUTE), now % _MINUTE / _MINUTE
        this, before = self._spent(key, minute)
        room = key.tokens_per_minute - num_tokens - this
        if before * (1 - passed) <= room:
            return 0.0
        if room >= 0:  # as soon as enough of the minute before has passed
            return _MINUTE * (1 - room / before - passed)
        return _MINUTE * (1 - passed + 1 - (room + this) / this)

    def allowance(self, key: KeyShare, now: float) -> Allowance:
        """The tokens that remain for a key that has a ceiling."""
        assert key.tokens_per_minute is not None
        minute, passed = int(now // _MINUTE), now % _MINUTE / _MINUTE
        this, before = self._spent(key, minute)
        spent = this + math.ceil(before * (1 - passed))
        reset = 2 - passed if this else 1 - passed if before else 0.0
        return Allowance(key.tokens_per_minute, max(0, key.tokens_per_minute - spent), _MINUTE * reset)

    def spend(self, key: KeyShare, num_tokens: int, now: float) -> None:
        """Count tokens; less than none where an estimate was too high. Nothing for a key whose place another has."""
        if self._owners[key.index] != key.owner:
            return
        at, minute = (self._frontend, key.index), int(now // _MINUTE)
        elapsed = minute - int(self._minutes[at])
        if elapsed:
            self._before[at] = self._tokens[at] if elapsed == 1 else 0
            self._tokens[at] = 0
            self._minutes[at] = minute
        self._tokens[at] += num_tokens

    def _spent(self, key: KeyShare, minute: int) -> tuple[int, int]:
        """The tokens spent in this minute and in the one before."""
        this = before = 0
        columns = (cells[:, key.index].tolist() for cells in (self._minutes, self._tokens, self._before))
        for its_minute, its_tokens, its_before in zip(*columns, strict=True):
            if its_minute == minute:
                this += its_tokens
                before += its_before
            elif its_minute == minute - 1:
                before += its_tokens
        return max(0, this), max(0, before)

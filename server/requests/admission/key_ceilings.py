"""How many tokens an API key may send in a minute, over all frontends.

Each frontend counts on the shared page what it let in, by the minutes of a clock that all processes of a machine share,
and all of them read the sum. So several frontends hold one ceiling without asking each other, however a client's
connections fall. The last sixty seconds are taken as this minute and, of the one before, as much as has not passed.
"""

import math
from dataclasses import dataclass

from server.requests.admission.key_shares import KeyShare
from wire.page import Page

_MINUTE = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a key may send now."""

    limit: int  # tokens a minute
    remaining: int  # tokens, of those
    reset_seconds: float  # until all of them remain, if it sends nothing


class KeyCeilings:
    """What keys have spent, as one frontend sees and writes it."""

    def __init__(self, page: Page, *, frontend: int) -> None:
        self._minutes, self._tokens, self._before = page.spent_minute, page.spent_tokens, page.spent_before
        self._owners = page.key_names
        self._frontend = frontend

    def seconds_until_room(self, key: KeyShare, num_tokens: int, now: float) -> float:
        """0 if the key may send so many tokens now. They must be no more than its ceiling."""
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
        """What remains for a key that has a ceiling."""
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
        """In this minute and in the one before."""
        this = before = 0
        columns = (cells[:, key.index].tolist() for cells in (self._minutes, self._tokens, self._before))
        for its_minute, its_tokens, its_before in zip(*columns, strict=True):
            if its_minute == minute:
                this += its_tokens
                before += its_before
            elif its_minute == minute - 1:
                before += its_tokens
        return max(0, this), max(0, before)

"""Limits on what a frontend does at a time: open requests, the shares and tokens a minute of API keys, messages of one
stream in their order, and how long work holds the event loop.

A key has the same place on the shared page for all frontends. There they count what waits of it, by which batch
managers let keys take turns, and what it has sent. Each frontend counts what it let in, by the minutes of a clock that
all processes of a machine share, and all of them read the sum. So several frontends hold one ceiling without asking
each other, however a client's connections fall. The last sixty seconds are taken as this minute and, of the one before,
as much as has not passed. Knows no request's content and no protocol.
"""

import asyncio
import contextlib
import hashlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from server.requests.errors import Overloaded
from server.settings.api_keys import ApiKey
from wire.page import Page

GAVE_WAY = 0.0  # the time of a clock that was not late, but the oldest of too many
_LONG_AGO = -2  # a minute that is over, and the one after it too
_MINUTE = 60.0  # seconds
SLICE_SECONDS = 0.001  # that work holds the event loop
# One step of a numpy loop handles so many: as JSON these are 0.7 ms, and nothing else that is done with them takes
# longer.
NUMBERS_A_STEP = 1 << 14
_Message = TypeVar("_Message")
_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


def gave_way() -> Overloaded:
    """The refusal then."""
    message = "too many requests of this API key wait for their bodies, and this one has waited longest"
    return Overloaded(message, reason="concurrency")


class OpenRequests:
    """Requests that are open, and places for those that are worked on.

    Who waits for its client, to send or to read, takes no place: silent clients would take all of them. Where all
    places are taken, a key that has fewer than its part of them gets one more, so nobody can take another key's.
    """

    def __init__(self, max_in_work: int) -> None:
        """A key may have as many that wait for their bodies."""
        self.num_open = 0  # from their heads to their answers' last bytes; to be read only
        self._max_in_work = max_in_work
        self._in_work: dict[str, int] = {}  # by key; none is 0
        self._num_in_work = 0
        self._clocks: dict[str, dict[asyncio.Timeout, None]] = {}  # of those that wait for bodies; by key, by age

    def begin(self, key: str) -> None:
        """One more is worked on."""
        self._in_work[key] = self._in_work.get(key, 0) + 1
        self._num_in_work += 1

    def end(self, key: str) -> None:
        """One less."""
        self._num_in_work -= 1
        left = self._in_work[key] - 1
        if left:
            self._in_work[key] = left
        else:
            del self._in_work[key]

    def check(self, key: str) -> None:
        """Raises Overloaded if too many are worked on, one of this key included."""
        if self._num_in_work <= self._max_in_work:
            return
        part = max(1, self._max_in_work // max(1, len(self._in_work)))
        if self._in_work.get(key, 0) > part:
            message = "too many requests are open; see --max-concurrent-requests"
            raise Overloaded(message, reason="concurrency")

    @contextlib.contextmanager
    def one_of(self, key: str) -> Iterator[None]:
        """Counts one more request of this key as worked on while the block runs; `check` is for those that come."""
        self.begin(key)
        try:
            yield
        finally:
            self.end(key)

    @contextlib.contextmanager
    def waiting(self, key: str, clock: asyncio.Timeout) -> Iterator[None]:
        """Counts one more request of this key as waiting for its body, until `clock` says that it is late.

        With one too many the clock of the one that has waited longest says so now: a client that sends is never that.
        """
        clocks = self._clocks.setdefault(key, {})  # as many as there are keys
        if len(clocks) >= self._max_in_work:
            oldest = next(iter(clocks))
            del clocks[oldest]
            if not oldest.expired():
                oldest.reschedule(GAVE_WAY)
        clocks[clock] = None
        try:
            yield
        finally:
            clocks.pop(clock, None)


class OpenRequest:
    """One request while the block runs: from its head to its answer's last byte."""

    __slots__ = ("_all", "_is_in_work", "_key")

    def __init__(self, all_of_them: OpenRequests) -> None:
        self._all = all_of_them
        self._key = ""
        self._is_in_work = False

    def __enter__(self) -> Self:
        self._all.num_open += 1
        return self

    def let_in(self, key: str) -> None:
        """It is worked on from now on. Raises Overloaded if too many are."""
        if not self._is_in_work:
            self._key, self._is_in_work = key, True
            self._all.begin(key)
        self._all.check(key)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the request as waiting for its client while the block runs."""
        was_in_work = self._is_in_work
        self.end_work()
        try:
            yield
        finally:
            if was_in_work:
                self._is_in_work = True
                self._all.begin(self._key)

    @contextlib.contextmanager
    def waiting_for_body(self, clock: asyncio.Timeout) -> Iterator[None]:
        """Counts the request as waiting for its body while the block runs, until `clock` says that it is late, or that
        it gives way to others of its key."""
        with self.waiting(), self._all.waiting(self._key, clock):
            yield

    def end_work(self) -> None:
        """Note that the answer is made: what is left is that its client reads it."""
        if self._is_in_work:
            self._is_in_work = False
            self._all.end(self._key)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end_work()
        self._all.num_open -= 1


class InOrder(Generic[_Message, _Result]):
    """A block of `async with`: inside it the stream is read, and when it ends all that is still open is cancelled.

    was_cut  whether the stream was read no further, though its client may have sent more
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[_Message | None]],
        work: Callable[[_Message], Coroutine[Any, Any, _Result]],
        *,
        max_open: int,
        dropped: Callable[[_Result], None],
    ) -> None:
        """`read` gives None at the end. Of at most `max_open` messages the results are not taken yet. `dropped` gets
        those that nobody will take."""
        self.was_cut = False
        self._read = read
        self._work = work
        self._dropped = dropped
        self._room = asyncio.Semaphore(max_open)
        self._open: asyncio.Queue[asyncio.Task[_Result] | None] = asyncio.Queue()  # bounded by `_room`
        self._first: asyncio.Task[_Result] | None = None  # whose result is waited for

    async def __aenter__(self) -> Self:
        self._reader = asyncio.get_running_loop().create_task(self._read_all())
        return self

    async def _read_all(self) -> None:
        try:
            while (message := await self._next_message()) is not None:
                self._open.put_nowait(asyncio.get_running_loop().create_task(self._work(message)))
                del message  # until the next has come it would be kept
                await asyncio.sleep(0)  # the work begins, and counts what it holds, before more is read
        finally:
            self._open.put_nowait(None)

    async def _next_message(self) -> _Message | None:
        await self._room.acquire()
        return await self._read()

    async def next(self) -> _Result | None:
        """The next result, None at the end. Raises what `read` and `work` raise."""
        self._first = await self._open.get()
        if self._first is None:
            if not self.was_cut:
                await self._reader
            return None
        result = await self._first
        self._first = None
        self._room.release()
        return result

    def cut(self) -> None:
        """Read no further; what was read gets its results."""
        self.was_cut = not self._reader.done()
        self._reader.cancel()
        self._open.put_nowait(None)  # it may not even have begun

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._reader.cancel()
        left = [self._first] if self._first is not None else []
        while not self._open.empty():
            if (task := self._open.get_nowait()) is not None:
                left.append(task)
        for task in left:
            task.cancel()
        for result in await asyncio.gather(*left, self._reader, return_exceptions=True):
            if result is not None and not isinstance(result, BaseException):
                self._dropped(result)


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
        # whether there may be anything to share; never changes, so that what was counted is uncounted too
        self.are_several = places.num_places > 1
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


class TimeSlice:
    """The time that a piece of work may still hold the event loop."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends = time.perf_counter() + SLICE_SECONDS

    async def end_if_over(self) -> None:
        """Let other requests run if the slice is over, and begin the next one."""
        if time.perf_counter() >= self._ends:
            await asyncio.sleep(0)
            self._ends = time.perf_counter() + SLICE_SECONDS


class SharedSlice:
    """The time that several pieces of work together may still hold the event loop. Each gets its slice in turn.

    Were each given a slice of its own, fifty of them would hold the loop fifty times as long.
    """

    __slots__ = ("_ends", "_turn")

    def __init__(self) -> None:
        self._ends = 0.0
        self._turn = asyncio.Lock()  # who came first is first

    async def end_if_over(self) -> None:
        """Does as TimeSlice's method; other pieces of this work have their turn first."""
        if time.perf_counter() >= self._ends:
            async with self._turn:
                await asyncio.sleep(0)
                self._ends = time.perf_counter() + SLICE_SECONDS


async def in_slices(items: Iterable[_Item]) -> AsyncIterator[_Item]:
    """The items one by one; other requests run in between."""
    time_slice = TimeSlice()
    for item in items:
        yield item
        await time_slice.end_if_over()


async def in_steps(num_rows: int, numbers_a_row: int, work: Callable[[slice], None]) -> None:
    """Call `work` for the rows in the same steps as `steps` has."""
    if 0 < num_rows <= NUMBERS_A_STEP // max(1, numbers_a_row):  # nearly always
        work(slice(0, num_rows))
        return
    async for part in steps(num_rows, numbers_a_row):
        work(part)


async def steps(num_rows: int, numbers_a_row: int) -> AsyncIterator[slice]:
    """The rows in steps of about NUMBERS_A_STEP numbers, each of at least one row."""
    step = max(1, NUMBERS_A_STEP // max(1, numbers_a_row))
    if num_rows <= step:
        if num_rows:
            yield slice(0, num_rows)
        return
    time_slice = TimeSlice()
    for start in range(0, num_rows, step):
        if start:
            await time_slice.end_if_over()
        yield slice(start, min(start + step, num_rows))

"""Reading a body: whole, or refused at the first moment at which it is known to be too large."""

import asyncio
import json
import sys
from collections.abc import Iterable

import pytest

from server.http import body
from server.http.body import (
    ClientLeft,
    Message,
    Receive,
    RequestBodies,
    TimedReceive,
    decoded_bytes,
    decoded_bytes_of_large,
)
from server.requests.errors import BodyTooSlow, Overloaded, PayloadTooLarge
from server.requests.limits import OpenRequest, OpenRequests
from server.requests.row_memory import SMALL_BYTES
from server.requests.work import RequestContext
from tests.server.edge import Edge, aiter_of

LIMIT = 100


class Connection:
    """Hands on the pieces of a body and counts how many were taken; then the client leaves."""

    def __init__(self, pieces: Iterable[bytes], *, is_whole: bool = True) -> None:
        self.num_taken = 0
        self._pieces = aiter_of(pieces)
        self._is_whole = is_whole

    async def receive(self) -> Message:
        self.num_taken += 1
        message = await anext(self._pieces, {"type": "http.disconnect"})
        return message if self._is_whole else {**message, "more_body": True}


def reader(max_total_bytes: int = 10 * LIMIT) -> RequestBodies:
    return RequestBodies(max_bytes=LIMIT, max_total_bytes=max_total_bytes)


def timed(receive: Receive) -> TimedReceive:
    return TimedReceive(receive, OpenRequest(OpenRequests(10)), is_whole=False)


def read(pieces: Iterable[bytes], content_length: int | None = None) -> tuple[bytes | Exception, int]:
    """The body or what was raised, and how many pieces were taken."""
    connection = Connection(pieces)
    try:
        return asyncio.run(reader().read(None, connection.receive, content_length)), connection.num_taken
    except PayloadTooLarge as error:
        return error, connection.num_taken


@pytest.mark.parametrize(
    "pieces", [[b""], [b"abc"], [b"a" * LIMIT], [b"a", b"b", b"", b"c"], [b"a" * 60, b"b" * 40], [b"", b""]]
)
def test_a_body_in_one_piece_or_many(pieces: list[bytes]) -> None:
    assert read(pieces) == (b"".join(pieces), len(pieces))


@pytest.mark.holds("Limits")
def test_a_length_over_the_limit_is_refused_before_anything_is_read() -> None:
    refused, num_taken = read([b"a"], content_length=LIMIT + 1)

    assert isinstance(refused, PayloadTooLarge)
    assert f"{LIMIT} bytes" in refused.message
    assert num_taken == 0
    assert read([b"a" * LIMIT], content_length=LIMIT) == (b"a" * LIMIT, 1)


@pytest.mark.holds("Limits")
@pytest.mark.parametrize(
    ("pieces", "num_taken"),
    [
        ([b"a" * 101], 1),
        ([b"a" * 101, b"", b""], 1),
        ([b"a" * 60, b"a" * 41], 2),
        ([b"a" * 30] * 50, 4),
        ([b"a"] * 1000, 101),
    ],
)
def test_more_than_the_limit_is_refused_with_the_piece_that_goes_over(pieces: list[bytes], num_taken: int) -> None:
    refused, taken = read(pieces)

    assert isinstance(refused, PayloadTooLarge)
    assert taken == num_taken


@pytest.mark.parametrize("pieces", [[], [b"a" * 50], [b"a" * 50, b"b" * 50]])
async def test_a_client_that_leaves_early_takes_no_room(pieces: list[bytes]) -> None:
    bodies = reader(max_total_bytes=LIMIT)
    for _ in range(3):
        with pytest.raises(ClientLeft):
            await bodies.read(None, Connection(pieces, is_whole=False).receive, None)
    assert len(await bodies.read(None, Connection([b"a" * 60, b"b" * 40]).receive, None)) == LIMIT


def large() -> Receive:
    return Connection([b"a" * 40, b"b" * 40]).receive


@pytest.mark.holds("Limits")
async def test_all_open_bodies_together_have_a_limit() -> None:
    bodies = reader(max_total_bytes=200)
    first, second = await bodies.read(None, large(), None), await bodies.read(None, large(), None)
    with bodies.held(len(first)):
        with bodies.held(len(second)):
            with pytest.raises(Overloaded) as refused:
                await bodies.read(None, large(), None)
            assert refused.value.retry_after is not None
            assert await bodies.read(None, Connection([b"small"]).receive, None) == b"small"
        assert len(await bodies.read(None, large(), None)) == 80


async def test_bodies_that_are_being_read_count() -> None:
    class SlowConnection(Connection):
        async def receive(self) -> Message:
            await asyncio.sleep(0)
            return await super().receive()

    bodies = reader(max_total_bytes=LIMIT)
    both = [bodies.read(None, SlowConnection([b"a" * 40, b"b" * 40]).receive, None) for _ in range(2)]
    results = await asyncio.gather(*both, return_exceptions=True)
    assert [type(result) for result in results if isinstance(result, Exception)] == [Overloaded]
    assert [len(result) for result in results if isinstance(result, bytes)] == [80]


async def test_one_body_fits_even_where_the_total_is_shared_out_thin() -> None:
    assert len(await reader(max_total_bytes=10).read(None, large(), None)) == 80


@pytest.mark.holds("Limits")
async def test_a_body_that_never_begins_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """test_bounds_of_every_route.py has those that begin, and stop."""
    monkeypatch.setattr(body, "_PIECE_SECONDS", 0.01)
    with pytest.raises(BodyTooSlow):
        await reader().read(None, timed(asyncio.Queue[Message]().get), None)


async def trickle(num_bytes: int) -> bytes:
    """A body of single bytes, each after a turn of the loop."""

    async def receive() -> Message:
        nonlocal num_bytes
        await asyncio.sleep(0.001)
        num_bytes -= 1
        return {"type": "http.request", "body": b"a", "more_body": num_bytes > 0}

    return await RequestBodies(max_bytes=1000, max_total_bytes=1000).read(None, timed(receive), None)


@pytest.mark.holds("Limits")
async def test_a_body_that_trickles_is_given_up_although_it_never_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "_BODY_SECONDS", 0.02)
    monkeypatch.setattr(body, "_BYTES_PER_SECOND", 1_000_000)
    with pytest.raises(BodyTooSlow, match="more slowly than"):
        await trickle(1000)


@pytest.mark.holds("Limits")
async def test_who_sends_fast_enough_may_take_longer_than_the_first_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second for each of 100 bytes, by a clock that the test moves on."""
    monkeypatch.setattr(body, "_BYTES_PER_SECOND", 1)

    loop, passed, num_left = asyncio.get_running_loop(), 0.0, 100
    time = loop.time

    async def receive() -> Message:
        nonlocal passed, num_left
        passed, num_left = passed + 0.5, num_left - 1
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"a", "more_body": num_left > 0}

    with monkeypatch.context() as patch:
        patch.setattr(loop, "time", lambda: time() + passed)
        assert await reader().read(None, timed(receive), None) == b"a" * 100


@pytest.mark.holds("Limits")
async def test_what_came_fast_gives_no_right_to_trickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that has sent much could else hold it for hours."""
    monkeypatch.setattr(body, "_BODY_SECONDS", 0.05)
    monkeypatch.setattr(body, "_BYTES_PER_SECOND", 1000)
    pieces = [b"a" * 900]

    async def receive() -> Message:
        if not pieces:
            await asyncio.sleep(0.002)
            return {"type": "http.request", "body": b"b", "more_body": True}
        return {"type": "http.request", "body": pieces.pop(), "more_body": True}

    with pytest.raises(BodyTooSlow, match="more slowly than"):
        await RequestBodies(max_bytes=1000, max_total_bytes=1000).read(None, timed(receive), None)


@pytest.mark.holds("Limits", "Every bound")
@pytest.mark.parametrize("character", ["a", "\x7f", "\xe9", "\u0101", "\u20ac", "\u4e16", "\U0001f600"])
@pytest.mark.parametrize("is_escaped", [False, True])
def test_a_body_counts_as_what_its_texts_take(character: str, is_escaped: bool) -> None:
    text = "x" * 100_000 + character
    sent = json.dumps({"input": text}, ensure_ascii=is_escaped).encode()
    assert sys.getsizeof(text) - 100 <= decoded_bytes(sent) <= 4 * len(sent)
    assert asyncio.run(decoded_bytes_of_large(sent)) == decoded_bytes(sent)
    if character == "a":
        assert decoded_bytes(sent) == len(sent)


@pytest.mark.parametrize("start", range(SMALL_BYTES - 4, SMALL_BYTES + 2))
@pytest.mark.parametrize(("escape", "width"), [(b"\\u4e16", 2), (b"\\ud83d\\ude00", 4), (b"\\uD83D\\uDE00", 4)])
def test_an_escape_between_two_slices_counts(start: int, escape: bytes, width: int) -> None:
    body = b"x" * start + escape + b"x" * SMALL_BYTES
    assert asyncio.run(decoded_bytes_of_large(body)) == width * len(body)


async def test_of_several_keys_one_has_half_of_the_bytes_of_open_bodies() -> None:
    bodies = RequestBodies(max_bytes=LIMIT, max_total_bytes=4 * LIMIT, are_keys_several=True)
    of_a, of_b = bodies.of("a"), bodies.of("b")
    with of_a.held(2 * LIMIT):
        with pytest.raises(Overloaded):
            await of_a.read(None, large(), None)
        assert len(await of_b.read(None, large(), None)) == 80
    assert len(await of_a.read(None, large(), None)) == 80


def test_what_decoding_takes_is_refused_before_it_is_taken_but_never_to_the_only_body() -> None:
    bodies, much = RequestBodies(max_bytes=LIMIT, max_total_bytes=LIMIT), SMALL_BYTES + 1
    with bodies.held(LIMIT):
        bodies.check(much, held=LIMIT)
        with bodies.held(1), pytest.raises(Overloaded):
            bodies.check(much, held=LIMIT)


@pytest.mark.holds("Every bound")
@pytest.mark.parametrize(("num_values", "are_several", "held"), [(1000, False, 32_000), (60_000, True, 1 << 20)])
async def test_a_body_that_goes_on_counts_its_values(num_values: int, are_several: bool, held: int) -> None:
    """Of two bytes each, which another process makes numbers of; not as more than a key may have."""
    content = b"[" + b"0," * num_values + b"0]"
    bodies = RequestBodies(max_bytes=1 << 20, max_total_bytes=2 << 20, are_keys_several=are_several)
    edge = Edge()
    edge.change(bodies=bodies)
    request = edge.request(Connection([content]).receive, context=RequestContext("a"))
    await request.read(lambda _, body: body, goes_on=True)
    assert bodies._open.num_bytes == held
    request.let_go()
    assert bodies._open.num_bytes == 0

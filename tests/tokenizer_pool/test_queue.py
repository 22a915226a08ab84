"""The order of a worker's pieces, on a virtual clock."""

import heapq
from collections import deque
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenizer_pool.tasks import ChatPiece
from tokenizer_pool.worker import MAX_STRETCH_SECONDS, PieceQueue, QueuedPiece
from wire.connection import FrameConnection
from wire.vocabulary import RequestClass

INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK
ME = cast(FrameConnection, object())
PIECE_SECONDS = 0.005


@dataclass(frozen=True)
class Arrival:
    at: float
    request_class: RequestClass
    seconds: float  # what it takes


def queued(number: int, request_class: RequestClass, connection: FrameConnection = ME) -> QueuedPiece:
    return QueuedPiece(ChatPiece(0, request_class, ()), connection, number)


def simulate(arrivals: list[Arrival], *, num_workers: int = 1) -> dict[Arrival, float]:
    """When each piece was begun. A worker takes what has arrived by the time its last piece ended."""
    coming = deque(sorted(arrivals, key=lambda arrival: arrival.at))
    queue, free_at = PieceQueue(), [0.0] * num_workers
    arrived: list[Arrival] = []
    begun: dict[Arrival, float] = {}
    while coming or queue:
        now = heapq.heappop(free_at)
        if not queue:
            now = max(now, coming[0].at)
        while coming and coming[0].at <= now:
            queue.push(queued(len(arrived), coming[0].request_class))
            arrived.append(coming.popleft())
        piece = arrived[queue.pop().frame_id]
        begun[piece] = now
        queue.spent(piece.request_class, piece.seconds)
        heapq.heappush(free_at, now + piece.seconds)
    return begun


def order(queue: PieceQueue) -> list[int]:
    taken = []
    while queue:
        asked = queue.pop()
        queue.spent(asked.piece.request_class, PIECE_SECONDS)
        taken.append(asked.frame_id)
    return taken


@pytest.mark.holds("Two classes of work")
def test_interactive_goes_first_and_each_class_in_order() -> None:
    queue = PieceQueue()
    for number, request_class in enumerate([BULK, INTERACTIVE, BULK, INTERACTIVE]):
        queue.push(queued(number, request_class))
    assert len(queue) == 4
    assert order(queue) == [1, 3, 0, 2]


@pytest.mark.holds("A query waits for at most one running tokenizer piece")
@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_query_waits_for_at_most_one_running_piece(num_workers: int) -> None:
    """With all of a 2,048-text request in the queue, the wait is what is left of a piece that runs."""
    bulk = [Arrival(1e-9 * index, BULK, PIECE_SECONDS) for index in range(400)]
    queries = [Arrival(0.0137 + 0.0231 * index, INTERACTIVE, 0.0001) for index in range(25)]
    begun = simulate(bulk + queries, num_workers=num_workers)
    waits = [begun[query] - query.at for query in queries]
    assert max(waits) <= PIECE_SECONDS + 1e-9
    assert max(waits) > 0  # some piece was running
    last_query = max(queries, key=lambda query: query.at)
    assert max(begun[piece] for piece in bulk) > begun[last_query]  # and the request was not over by then


@pytest.mark.holds("Neither class starves", "Two classes of work")
def test_bulk_has_its_turn_while_interactive_never_ends() -> None:
    queries = [Arrival(1e-9 * index, INTERACTIVE, 0.004) for index in range(1000)]
    bulk = [Arrival(0.0, BULK, PIECE_SECONDS + 1e-9 * index) for index in range(3)]
    begun = simulate(queries + bulk)
    starts = sorted(begun[piece] for piece in bulk)
    assert starts[0] == pytest.approx(MAX_STRETCH_SECONDS, abs=0.004)
    assert starts[1] - starts[0] == pytest.approx(PIECE_SECONDS + MAX_STRETCH_SECONDS, abs=0.004)


def test_interactive_work_counts_only_while_bulk_waits() -> None:
    queue = PieceQueue()
    queue.push(queued(0, INTERACTIVE))
    queue.pop()
    queue.spent(INTERACTIVE, 100.0)
    queue.push(queued(1, BULK))
    queue.push(queued(2, INTERACTIVE))
    assert order(queue) == [2, 1]


def test_dropping_an_owner_leaves_the_others_in_order() -> None:
    queue, gone = PieceQueue(), cast(FrameConnection, object())
    for index in range(6):
        queue.push(queued(index, BULK, gone if index % 2 else ME))
        queue.push(queued(10 + index, INTERACTIVE, gone if index % 3 else ME))
    queue.drop(gone)
    assert order(queue) == [10, 13, 0, 2, 4]
    assert not queue


@given(st.lists(st.tuples(st.sampled_from(RequestClass), st.floats(0, 0.005)), min_size=1, max_size=60))
def test_everything_comes_out_once_and_in_its_class_order(pieces: list[tuple[RequestClass, float]]) -> None:
    queue = PieceQueue()
    for index, (request_class, _) in enumerate(pieces):
        queue.push(queued(index, request_class))
    taken = []
    while queue:
        taken.append(queue.pop().frame_id)
        queue.spent(*pieces[taken[-1]])
    for request_class in RequestClass:
        expected = [index for index, piece in enumerate(pieces) if piece[0] is request_class]
        assert [index for index in taken if pieces[index][0] is request_class] == expected

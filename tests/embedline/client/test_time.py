"""Cancellation, deadlines and hedging over real connections: events decide the order, no time is asserted."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from embedline import (
    CancellationToken,
    Cancelled,
    Client,
    DeadlineExceeded,
    RequestFailed,
    RequestProcessingPreference,
)
from embedline.client import runner
from tests.embedline.client.stub import CLOSE, RESET, Seen, Step, Stub, http, raw, rows_of, stub, texts


def cancel_when(server: Stub, count: int, token: CancellationToken) -> threading.Thread:
    """Cancel once the server has so many requests."""

    def wait() -> None:
        server.wait_until(lambda: len(server.seen) >= count)
        token.cancel()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize("count", [1, 9])
def test_cancelling_ends_the_call_closes_its_connections_and_keeps_its_rows(count: int) -> None:
    never, token = threading.Event(), CancellationToken()
    preference = RequestProcessingPreference(batch_size=1, max_concurrent_requests=3, cancel_token=token)
    script = lambda seen: [raw(seen.texts)] if seen.number < count - 1 else [never]  # noqa: E731
    with stub(script) as server, Client(server.url) as client:
        thread = cancel_when(server, count, token)
        with pytest.raises(Cancelled) as cancelled:
            client.embed(texts(count), preference=preference)
        thread.join()
        done = cancelled.value.partial.done
        assert np.array_equal(cancelled.value.partial.numpy()[done].ravel(), rows_of(texts(count))[done].ravel())
        assert done.sum() <= count - 1
        never.set()
        with pytest.raises(Cancelled):
            client.embed("text", preference=preference)
        assert len(server.seen) == count  # nothing was sent by the second call


def test_a_wait_for_a_retry_is_cancelled_too() -> None:
    token = CancellationToken()
    with stub(lambda _: [http(503, b"", retry_after="100")]) as server, Client(server.url) as client:
        thread = cancel_when(server, 1, token)
        with pytest.raises(Cancelled):
            client.embed("text", preference=RequestProcessingPreference(cancel_token=token))
        thread.join()


def test_the_time_of_the_whole_call() -> None:
    never = threading.Event()
    preference = RequestProcessingPreference(batch_size=1, max_concurrent_requests=2, total_timeout_s=1.0)
    script = lambda seen: [raw(seen.texts)] if seen.number < 3 else [never]  # noqa: E731
    with stub(script) as server, Client(server.url) as client:
        with pytest.raises(DeadlineExceeded) as late:
            client.embed(texts(9), preference=preference)
        never.set()
    assert late.value.partial.done.sum() == 3
    assert all(int(seen.headers["request-timeout-ms"]) <= 1000 for seen in server.seen)


@pytest.fixture
def all_in_use() -> Iterator[Client]:
    """A client whose only connection, and with it the only thread, waits for an answer in another call."""
    never, token = threading.Event(), CancellationToken()
    with stub(lambda _: [never]) as server, Client(server.url, max_connections=1) as client:
        preference = RequestProcessingPreference(batch_size=1, cancel_token=token)

        def hold() -> None:
            with pytest.raises(Cancelled):
                client.embed(texts(2), preference=preference)

        holder = threading.Thread(target=hold)
        holder.start()
        server.wait_until(lambda: len(server.seen) == 1)
        yield client
        assert holder.is_alive()
        assert len(server.seen) == 1
        token.cancel()
        holder.join()
        never.set()


@pytest.mark.parametrize("count", [1, 2], ids=["for a connection", "for a thread"])
def test_a_wait_for_its_turn_is_cancelled_too(all_in_use: Client, count: int) -> None:
    token = CancellationToken()
    threading.Timer(0.05, token.cancel).start()
    with pytest.raises(Cancelled):
        all_in_use.embed(texts(count), preference=RequestProcessingPreference(batch_size=1, cancel_token=token))


@pytest.mark.parametrize("count", [1, 2], ids=["for a connection", "for a thread"])
def test_a_wait_for_its_turn_ends_with_the_calls_time(all_in_use: Client, count: int) -> None:
    with pytest.raises(DeadlineExceeded) as late:
        all_in_use.embed(texts(count), preference=RequestProcessingPreference(batch_size=1, total_timeout_s=0.05))
    assert not late.value.partial.done.any()


@pytest.mark.parametrize("count", [1, 2], ids=["for a connection", "for a thread"])
def test_a_wait_for_its_turn_ends_with_the_attempts_time(all_in_use: Client, count: int) -> None:
    preference = RequestProcessingPreference(batch_size=1, timeout_s=0.02, max_retries=1, initial_backoff_ms=1)
    with pytest.raises(DeadlineExceeded, match=r"2 attempts: .*were in use") as late:
        all_in_use.embed(texts(count), preference=preference)
    assert not late.value.partial.done.any()


def test_an_attempt_that_takes_too_long_is_made_again() -> None:
    never = threading.Event()
    preference = RequestProcessingPreference(timeout_s=1.0, initial_backoff_ms=1)
    script = lambda seen: [never] if seen.number == 0 else [raw(seen.texts)]  # noqa: E731
    with stub(script) as server, Client(server.url) as client:
        assert np.array_equal(client.embed("text 3", preference=preference).numpy(), rows_of(["text 3"]))
        never.set()
    assert len(server.seen) == 2


class JumpingClock:
    """Goes on by half a second between any two looks at it, as on a machine that has no time for this process."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def monotonic(self) -> float:
        self._ahead += 0.49
        return time.monotonic() + self._ahead


def test_no_wake_up_is_missed_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for a retry may come after it was looked what is due, and before the wait for it begins."""
    monkeypatch.setattr(runner, "time", JumpingClock())
    preference = RequestProcessingPreference(initial_backoff_ms=1000, total_timeout_s=60)
    script = lambda seen: [RESET] if seen.number % 2 == 0 else [raw(seen.texts)]  # noqa: E731
    with stub(script) as server:
        for _ in range(3):
            with Client(server.url) as client:
                client.embed("text", preference=preference)
    assert len(server.seen) == 6


def hedging(share: float = 1.0) -> RequestProcessingPreference:
    return RequestProcessingPreference(hedge_delay=0.01, hedge_budget_pct=share, max_retries=0, batch_size=1)


def test_a_second_copy_answers_for_the_first_and_the_loser_is_dropped() -> None:
    never = threading.Event()
    script = lambda seen: [never, RESET] if seen.number == 0 else [raw(seen.texts)]  # noqa: E731
    with stub(script) as server, Client(server.url) as client:
        assert np.array_equal(client.embed("text 3", preference=hedging()).numpy(), rows_of(["text 3"]))
        assert [seen.headers["x-request-id"] for seen in server.seen] == [server.seen[0].headers["x-request-id"]] * 2
        client.embed("text 3")
        never.set()
        server.wait_until(lambda: len(server.open) == 1)
    assert (len(server.seen), server.num_connections) == (3, 2)


def test_the_first_copy_may_still_win() -> None:
    second_came, never = threading.Event(), threading.Event()

    def script(seen: Seen) -> Sequence[Step]:
        if seen.number == 0:
            return [second_came, raw(seen.texts)]
        second_came.set()
        return [never, RESET]

    with stub(script) as server, Client(server.url) as client:
        assert np.array_equal(client.embed("text 3", preference=hedging()).numpy(), rows_of(["text 3"]))
        never.set()
    assert len(server.seen) == 2


@pytest.mark.parametrize("bad", [CLOSE, http(503, b"busy")])
def test_a_copy_that_fails_leaves_it_to_the_other(bad: Step) -> None:
    second_came = threading.Event()

    def script(seen: Seen) -> Sequence[Step]:
        if seen.number == 1:
            second_came.set()
            return [bad]
        return [second_came, raw(seen.texts)]

    with stub(script) as server, Client(server.url) as client:
        assert np.array_equal(client.embed("text 3", preference=hedging()).numpy(), rows_of(["text 3"]))


class HalfCame(threading.Event):
    """Lets another answer come once the server waits for it, and goes on waiting."""

    def __init__(self, other: threading.Event, end: threading.Event) -> None:
        super().__init__()
        self._other = other
        self._end = end

    def wait(self, timeout: float | None = None) -> bool:
        self._other.set()
        return self._end.wait(timeout)


def test_half_of_a_head_keeps_the_other_copy_from_nothing() -> None:
    came, end = threading.Event(), threading.Event()

    def script(seen: Seen) -> Sequence[Step]:
        return [came, raw(seen.texts)] if seen.number == 0 else [b"HTTP/1.1 200 OK\r\n", HalfCame(came, end)]

    with stub(script) as server, Client(server.url) as client:
        preference = replace(hedging(), timeout_s=10)
        assert np.array_equal(client.embed("text 3", preference=preference).numpy(), rows_of(["text 3"]))
        end.set()
    assert len(server.seen) == 2


def test_a_second_copy_goes_to_another_server_where_there_is_one() -> None:
    never = threading.Event()

    def ours(seen: Seen) -> Sequence[Step]:
        slow.wait_until(lambda: len(slow.seen) == 1)  # a copy that has won would cut off one that was not read yet
        return [raw(seen.texts)]

    with stub(lambda _: [never, RESET]) as slow, stub(ours) as fast, Client([slow.url, fast.url]) as client:
        assert np.array_equal(client.embed("text 3", preference=hedging()).numpy(), rows_of(["text 3"]))
        never.set()
    assert (len(slow.seen), len(fast.seen)) == (1, 1)


def test_no_second_copy_beyond_the_budget() -> None:
    waiting = [threading.Event() for _ in range(4)]
    script = lambda seen: [waiting[seen.number], raw(seen.texts)]  # noqa: E731
    with stub(script) as server, Client(server.url) as client:
        for event in waiting:
            threading.Timer(0.05, event.set).start()
        client.embed("text", preference=hedging(0.0))
    assert len(server.seen) == 1


def test_servers_that_come_and_go_lose_nothing() -> None:
    """One of two is reset at every third request."""
    shaky = lambda seen: [RESET] if seen.number % 3 == 2 else [raw(seen.texts)]  # noqa: E731
    with stub(shaky) as first, stub(lambda seen: [raw(seen.texts)]) as second:
        preference = RequestProcessingPreference(batch_size=1, initial_backoff_ms=1, max_retries=20)
        with Client([first.url, second.url], preference=preference) as client:
            assert np.array_equal(client.embed(texts(300)).numpy(), rows_of(texts(300)))
    assert len(second.seen) > 50


def test_an_unreachable_server_beside_one_that_works_costs_nothing_but_its_tries() -> None:
    preference = RequestProcessingPreference(batch_size=1, max_retries=1)
    working = stub(lambda seen: [raw(seen.texts)])
    with working as server, Client(["http://127.0.0.1:1", server.url], preference=preference) as client:
        assert np.array_equal(client.embed(texts(50)).numpy(), rows_of(texts(50)))


def test_no_more_connections_than_allowed() -> None:
    with stub(lambda seen: [raw(seen.texts)]) as server, Client(server.url, max_connections=2) as client:
        preference = RequestProcessingPreference(batch_size=1)
        threads = [threading.Thread(target=lambda: client.embed(texts(20), preference=preference)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert server.most_in_flight <= 2
    assert server.num_connections <= 2


def test_what_the_callers_own_iterator_raises_comes_through() -> None:
    def broken() -> object:
        yield from texts(5)
        raise KeyError("mine")

    with stub(lambda seen: [raw(seen.texts)]) as server, Client(server.url) as client:
        preference = RequestProcessingPreference(batch_size=2)
        with pytest.raises(KeyError, match="mine"):
            for _ in client.iter_embed(broken(), preference=preference):  # type: ignore[arg-type]
                pass
        assert len(client.embed("still works")) == 1


def test_an_error_while_others_are_in_flight_aborts_them() -> None:
    never = threading.Event()

    def script(seen: Seen) -> Sequence[Step]:
        return [http(401, b"no key")] if seen.texts == ["text 3"] else [never]

    with stub(script) as server, Client(server.url) as client:
        with pytest.raises(RequestFailed, match="HTTP 401: no key"):
            client.embed(texts(4), preference=RequestProcessingPreference(batch_size=1))
        never.set()

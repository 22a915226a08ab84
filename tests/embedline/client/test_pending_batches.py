"""What is tried again, where and when, with times that are only numbers: no thread, no clock, no connection."""

import itertools
import time
from collections.abc import Sequence
from typing import Any

import pytest

from embedline.client.base_url import read_base_url
from embedline.client.embed import EmbedTask, new_array
from embedline.client.endpoints import Endpoint, Endpoints
from embedline.client.errors import DeadlineExceeded, RequestFailed
from embedline.client.failure import Failure, Kind, read_retry_after
from embedline.client.preference import RequestProcessingPreference
from embedline.client.scheduling import Batches, PendingBatch, PendingBatches
from embedline.client.tasks import AnswerPart

INFINITE = float("inf")


class Course:
    """One call over virtual time."""

    def __init__(self, num_inputs: int = 1, *, urls: Sequence[str] = ("http://a",), deadline: float = INFINITE) -> None:
        self.endpoints = [Endpoint(read_base_url(url), None, max_connections=32) for url in urls]
        self.now = 1000.0
        self.preference = RequestProcessingPreference(batch_size=2, timeout_s=50)
        self.batches = self._pending(num_inputs, deadline)

    def _pending(self, num_inputs: int, deadline: float) -> PendingBatches:
        task = EmbedTask({}, new_array, dimensions=None, extra={})
        batches = Batches(task, ["text"] * num_inputs, batch_size=2, max_chars=None)
        self.deadline = 1000 + deadline
        return PendingBatches(
            task, batches, Endpoints(self.endpoints), self.preference, request_id="id", deadline=self.deadline
        )

    def take(self) -> list[PendingBatch]:
        return list(self.batches.take(self.now))

    def take_one(self) -> PendingBatch:
        (pending,) = self.take()
        return pending

    def wait_and_take(self) -> list[PendingBatch]:
        """The batches that may begin next, at whatever time that is."""
        for _ in range(9):
            self.wait()
            if batches := self.take():
                return batches
        raise AssertionError("nothing may begin")

    def fail(self, pending: PendingBatch, failure: Failure) -> None:
        self.batches.failed(pending, failure, self.now)

    def wait(self) -> float:
        """Go on to the next time at which something may begin; how long that took."""
        before, self.now = self.now, self.batches.wakes_at(self.now)
        return self.now - before


def status(number: int, retry_after: float | None = None, body: bytes = b"") -> Failure:
    return Failure(Kind.STATUS, f"HTTP {number}", status=number, retry_after=retry_after, body=body)


LOST = Failure(Kind.CONNECTION, "lost")


def test_once_the_calls_time_is_over_only_the_end_of_an_attempt_wakes_it() -> None:
    course = Course(deadline=20)
    course.take_one()
    assert course.wait() == 20
    assert course.batches.wakes_at(course.now) == INFINITE


@pytest.mark.parametrize("failure", [status(500), status(503), status(429), status(408), LOST], ids=str)
def test_waits_grow_by_four_with_jitter_and_end_after_the_retries(failure: Failure) -> None:
    course = Course()
    waits, pending = [], course.take_one()
    for _ in range(5):
        course.fail(pending, failure)
        before = course.now
        (pending,) = course.wait_and_take()
        waits.append(course.now - before)
    with pytest.raises(RequestFailed, match=f"{failure.words}; 6 attempts"):
        course.fail(pending, failure)

    most = [0.125 * 4**number for number in range(4)] + [30.0]
    assert all(limit / 2 <= wait <= limit + 1e-6 for wait, limit in zip(waits, most, strict=True)), waits


def test_jitter_differs_from_job_to_job() -> None:
    course = Course(8)
    batches = course.take()
    for pending in batches:
        course.fail(pending, status(500))
    times = [course.now for _ in batches if course.wait_and_take()]
    assert len(set(times)) == len(batches) == 4


@pytest.mark.parametrize("number", [400, 401, 403, 404, 413, 422, 424, 501, 307])
def test_what_another_try_would_not_change_is_final(number: int) -> None:
    course = Course()
    pending = course.take_one()
    course.batches.finished(
        pending, AnswerPart(result=None, form="bytes"), 0.1
    )  # so that the form of the request is not to blame
    course = Course(1)
    course.endpoints[0].learn("embed", 0, is_sure=True)
    with pytest.raises(RequestFailed, match=f"HTTP {number}"):
        course.fail(course.take_one(), status(number))


@pytest.mark.parametrize("seconds", [0.0, 2.0, 45.0])
def test_retry_after_is_waited_for_and_a_little_more(seconds: float) -> None:
    course = Course()
    course.fail(course.take_one(), status(429, retry_after=seconds))
    assert seconds <= course.wait() <= 1.1 * seconds + 0.1
    assert course.take_one().num_retries == 1


@pytest.mark.parametrize("value", ["3600", "1000000000", "9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_retry_after_beyond_all_patience_is_final(value: str) -> None:
    course = Course()
    with pytest.raises(RequestFailed, match=r"HTTP 503.* not tried again, for that would be after"):
        course.fail(course.take_one(), status(503, retry_after=read_retry_after(value, now=1795377600.0)))


def test_a_wait_for_a_turn_says_nothing_of_the_server() -> None:
    course = Course()
    course.fail(course.take_one(), Failure(Kind.NO_TURN, "all connections were in use"))
    assert not course.endpoints[0].is_failing
    (again,) = course.wait_and_take()
    assert again.num_retries == 1


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("Sun, 22 Nov 2026 20:00:10 GMT", 10.0),
        ("Sun Nov 22 20:00:10 2026", 10.0),  # in UTC too
        ("Sun, 22 Nov 2026 19:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("-1000000000", None),
        ("1e9", None),
        (".", None),
        ("Sun, 99 Nov 2026 20:00:10 GMT", None),
        ("Sun, 22 Nov 99999 20:00:10 GMT", None),
        ("", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(
    value: str, seconds: float | None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(time.tzset)  # after the variable is as before
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    assert read_retry_after(value, now=1795377600.0) == seconds


def test_a_failed_request_goes_to_another_server_at_once() -> None:
    course = Course(urls=["http://a", "http://b", "http://c"])
    visited = []
    for _ in range(3):
        pending = course.take_one()
        assert pending.endpoint is not None
        visited.append(pending.endpoint.origin.host)
        course.fail(pending, status(503, retry_after=20))
    assert sorted(visited) == ["a", "b", "c"]
    assert course.take() == []  # all have refused it: now it waits
    assert course.wait() >= 20


def test_a_server_that_fails_is_left_alone_while_others_work_and_comes_back() -> None:
    course = Course(200, urls=["http://a", "http://b"])
    first, second = course.endpoints
    batches = course.take()
    for pending in batches:
        if pending.endpoint is first:
            course.fail(pending, LOST)
        else:
            course.batches.finished(pending, AnswerPart(result=None, form="bytes"), 0.1)
    assert {pending.endpoint for pending in course.take()} == {second}
    course.now += 1.0
    (probe,) = [
        pending for pending in course.take() if pending.endpoint is first
    ]  # one request tries whether it works again
    course.batches.finished(probe, AnswerPart(result=None, form="bytes"), 0.1)
    assert sum(pending.endpoint is first for pending in course.take()) > 1


def test_while_the_only_server_is_gone_one_request_at_a_time_tries_it() -> None:
    course = Course(100)
    for pending in course.take():
        course.fail(pending, LOST)
    for _ in range(3):
        (probe,) = course.wait_and_take()
        course.fail(probe, LOST)


def test_refusals_make_the_client_send_less_at_a_time() -> None:
    course = Course(400)
    before = course.take()
    for pending in before:
        course.fail(pending, status(429, retry_after=1))
    course.now += 5
    assert 1 <= len(course.take()) < len(before)


def test_the_deadline_of_the_call_bounds_attempts_and_waits() -> None:
    course = Course(deadline=10)
    pending = course.take_one()
    assert pending.deadline == course.deadline
    with pytest.raises(DeadlineExceeded, match=r"not tried again, for that would be after 2\d"):
        course.fail(pending, status(503, retry_after=20))

    course = Course(deadline=10)
    pending = course.take_one()
    course.now += 10
    with pytest.raises(DeadlineExceeded, match="no answer"):
        course.fail(pending, Failure(Kind.TIMEOUT, "no answer"))
    assert not course.endpoints[0].is_failing  # the time was ours, not the server's


def test_what_was_never_sent_is_named_when_the_time_is_over() -> None:
    course = Course(4, urls=["http://a"], deadline=1)
    course.endpoints[0].try_begin(course.now, is_first=True)
    course.endpoints[0].failed(course.now, 5.0)
    assert course.take() == []
    assert course.wait() == 1.0
    with pytest.raises(DeadlineExceeded, match=r"inputs 0 to 1 .*total_timeout_s is over\. 0 of 4 inputs are done"):
        course.batches.check_deadline(course.now)


def test_a_call_never_waits_for_other_calls_of_its_client() -> None:
    course = Course()
    for _ in range(100):
        course.endpoints[0].try_begin(course.now, is_first=True)
    assert course.take_one()


def test_requests_go_to_the_server_with_the_least_to_do() -> None:
    course = Course(20, urls=["http://a", "http://b"])
    for _ in range(4):
        assert course.endpoints[0].try_begin(course.now, is_first=False)
    batches = list(itertools.islice(course.batches.take(course.now), 4))
    assert {pending.endpoint for pending in batches} == {course.endpoints[1]}


def test_a_stream_is_read_no_further_than_requests_need() -> None:
    read: list[int] = []

    def stream() -> Any:
        for number in itertools.count():
            read.append(number)
            yield "text"

    course = Course()
    task = EmbedTask({}, new_array, dimensions=None, extra={})
    batches = Batches(task, stream(), batch_size=2, max_chars=None)
    pending = PendingBatches(
        task, batches, Endpoints(course.endpoints), course.preference, request_id="id", deadline=INFINITE
    )
    begun = list(pending.take(course.now))
    assert len(read) == 2 * len(begun) == 8

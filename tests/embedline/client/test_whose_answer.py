"""Answers on kept connections: each is taken for its own request alone, and interim ones for none."""

import numpy as np

from embedline import Client, RequestProcessingPreference
from tests.embedline.client.stub import RESET, Seen, Step, http, raw, rows_of, stub

INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"


def test_interim_answers_are_passed_over() -> None:
    script = lambda seen: [b"HTTP/1.1 102 Processing\r\n\r\n", 2 * INTERIM, raw(seen.texts)]  # noqa: E731
    with stub(script) as server, Client(server.url) as client:
        for text in ("text 1", "text 2"):
            assert np.array_equal(client.embed(text).numpy(), rows_of([text]))
    assert server.num_connections == 1


def test_an_answer_that_comes_twice_is_never_that_of_the_next_request() -> None:
    """The second copy comes once the next request is there: it is known by its id, and costs no retry."""
    sent: dict[int, bytes] = {}

    def answer_late_again(seen: Seen) -> list[Step]:
        sent[seen.number] = raw(seen.texts, x_request_id=f"{seen.headers['x-request-id']}, a-proxy's-own")
        return [sent[0], sent[1]] if seen.number == 1 else [sent[seen.number]]

    preference = RequestProcessingPreference(max_retries=0)
    with stub(answer_late_again) as server, Client(server.url, preference=preference) as client:
        for text in ("text 1", "text 2", "text 3"):
            assert np.array_equal(client.embed(text).numpy(), rows_of([text]))
    assert (len(server.seen), server.num_connections) == (4, 2)


def test_each_attempt_has_an_id_of_its_own() -> None:
    script = lambda seen: [http(503)] if seen.number < 2 else [raw(seen.texts)]  # noqa: E731
    preference = RequestProcessingPreference(max_retries=2, initial_backoff_ms=1)
    with stub(script) as server, Client(server.url, preference=preference) as client:
        client.embed("text")
    first, *others = [seen.headers["x-request-id"] for seen in server.seen]
    assert others == [f"{first}.1", f"{first}.2"]


def test_an_id_that_a_server_or_a_cache_made_is_no_other_request() -> None:
    answers = [{"x_request_id": "req-1"}, {"x_request_id": "embedline-0123456789-0", "age": "5"}]
    with stub(lambda seen: [raw(seen.texts, **answers[seen.number])]) as server, Client(server.url) as client:
        for text in ("text 1", "text 2"):
            assert np.array_equal(client.embed(text).numpy(), rows_of([text]))
    assert server.num_connections == 1


def test_a_kept_connection_that_was_closed_meanwhile_costs_no_retry() -> None:
    """Also with max_retries=0: the server could not know that a request was coming."""
    script = lambda seen: [raw(seen.texts), *([RESET] if seen.number == 0 else [])]  # noqa: E731
    with stub(script) as server, Client(server.url, preference=RequestProcessingPreference(max_retries=0)) as client:
        client.embed("text")
        server.wait_until(lambda: not server.open)
        assert np.array_equal(client.embed("text 4").numpy(), rows_of(["text 4"]))
    assert server.num_connections == 2


def test_a_request_on_a_connection_that_ends_with_it_is_sent_once_more() -> None:
    script = lambda seen: [RESET] if seen.number == 1 else [raw(seen.texts)]  # noqa: E731
    with stub(script) as server, Client(server.url, preference=RequestProcessingPreference(max_retries=0)) as client:
        client.embed("text")
        client.embed("text")
    assert (len(server.seen), server.num_connections) == (3, 2)

"""Rows as batches finish: all of them once, in constant memory, and what an early end leaves."""

import re
import threading
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from embedline import Client, RequestFailed, RequestProcessingPreference
from tests.embedline.client.stub import as_json, raw, row_of, rows_of, stub, texts

PREFERENCE = RequestProcessingPreference(batch_size=7)


def test_every_text_has_its_row_once() -> None:
    with stub(lambda seen: [raw(seen.texts)]) as server, Client(server.url, preference=PREFERENCE) as client:
        rows = np.full((100, 4), np.nan, np.float32)
        for part, found in client.iter_embed(text for text in texts(100)):
            assert np.isnan(rows[part]).all()
            rows[part] = found
    assert np.array_equal(rows, rows_of(texts(100)))


def test_a_stream_of_texts_is_embedded_in_constant_memory() -> None:
    def stream() -> Iterator[str]:
        for number in range(20_000):
            yield f"text {number}"

    with stub(lambda seen: [raw(seen.texts)]) as server, Client(server.url) as client:
        preference = RequestProcessingPreference(batch_size=100, max_concurrent_requests=4)
        found = client.iter_embed(stream(), preference=preference)
        total = np.zeros(2)
        peaks = []
        for number, part in enumerate(found):
            total += part.embeddings[:, :2].sum(axis=0, dtype=np.float64)
            server.seen.clear()
            if number == 20:
                tracemalloc.start()
            if number in (80, 199):
                peaks.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert total[0] == sum(range(20_000))
    assert peaks[1] - peaks[0] < 200_000


def test_the_client_stays_open_for_its_iterator() -> None:
    """Nobody else has it here, and a client that is dropped is closed."""
    with stub(lambda seen: [raw(seen.texts)]) as server:
        parts = list(Client(server.url, preference=PREFERENCE).iter_embed(texts(100)))
    assert sum(len(part.embeddings) for part in parts) == 100


def test_an_early_end_aborts_what_is_in_flight() -> None:
    never = threading.Event()
    script = lambda seen: [raw(seen.texts)] if seen.number == 0 else [never]  # noqa: E731
    with stub(script) as server, Client(server.url, preference=PREFERENCE) as client:
        for part in client.iter_embed(texts(100)):
            assert np.array_equal(part.embeddings, rows_of(texts(100)[part.start : part.stop]))
            break
        never.set()
        assert len(server.seen) < 15


def test_what_has_come_is_yielded_before_the_error() -> None:
    script = lambda seen: [as_json({"error": "no"}, 401) if "text 50" in seen.texts else raw(seen.texts)]  # noqa: E731
    found: list[int] = []

    def iterate(client: Client) -> None:
        for part, rows in client.iter_embed(texts(100)):
            found.extend(range(part.start, part.stop))
            assert np.array_equal(rows[0], row_of(f"text {part.start}"))

    with stub(script) as server, Client(server.url, preference=PREFERENCE) as client:
        failing = pytest.raises(RequestFailed)
        with failing as failed:
            iterate(client)
    assert failed.value.partial is None
    assert (failed.value.start, failed.value.stop) == (49, 56)
    done = re.search(r"(\d+) of 100 inputs are done", str(failed.value))
    assert done is not None
    assert len(found) >= int(done[1])  # more may have come while the others were aborted

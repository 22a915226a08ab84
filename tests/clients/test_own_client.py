"""Our own client: rows are exact, and the server honours what it sends."""

import asyncio
import threading

import numpy as np
import pytest

from embedline import (
    AsyncClient,
    CancellationToken,
    Cancelled,
    Client,
    DeadlineExceeded,
    RequestFailed,
    RequestProcessingPreference,
)
from tests.server_e2e.expected import DIMENSIONS, ids_of, row_of_ids, rows_of
from tests.server_e2e.running import Server

pytestmark = pytest.mark.clients

TEXTS = [f"text number {number} " + "and more " * (number % 30) for number in range(200)]
BATCHES = RequestProcessingPreference(batch_size=7, max_retries=0)


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def test_many_texts(server: Server) -> None:
    with Client(url(server), preference=BATCHES) as client:
        answer = client.embed(TEXTS)
        assert np.array_equal(answer.numpy(), rows_of(TEXTS))
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == sum(len(ids_of(text)) for text in TEXTS)
        assert answer.truncated_inputs == 0
        rows = np.empty_like(answer.numpy())
        for part, found in client.iter_embed(TEXTS):
            rows[part] = found
        assert np.array_equal(rows, answer.numpy())


def test_odd_texts_token_ids_and_dimensions(server: Server) -> None:
    odd = ["naïve 日本語 🙂", " ", "word " * 300, "a\ud83d"]
    with Client(url(server)) as client:
        answer = client.embed(odd[:3])
        assert np.array_equal(answer.numpy(), rows_of(odd[:3]))
        assert answer.truncated_inputs == 1
        ids = np.array([101, 7592, 2088, 102])
        assert np.array_equal(client.embed([ids]).numpy(), row_of_ids(ids.tolist())[None])
        assert np.array_equal(client.embed(odd[:1], dimensions=5).numpy(), rows_of(odd[:1])[:, :5])


def test_reranking(server: Server) -> None:
    query, *rows = rows_of(["a query", *TEXTS]).astype(np.float64)
    cosines = [row @ query / np.linalg.norm(row) / np.linalg.norm(query) for row in rows]
    with Client(url(server), preference=BATCHES) as client:
        ranked = client.rerank("a query", TEXTS)
        assert np.allclose(ranked.numpy(), cosines, atol=1e-5)
        assert ranked.usage is None  # TEI's answer says nothing of tokens


def test_a_refusal_keeps_the_rows_and_names_the_input(server: Server) -> None:
    preference = RequestProcessingPreference(batch_size=50, max_concurrent_requests=1)
    with Client(url(server), preference=preference) as client, pytest.raises(RequestFailed) as failed:
        client.embed([*TEXTS, "fine", ""])
    assert "with inputs 200 to 201 (x-request-id embedline-" in str(failed.value)
    assert "input[1] must not be an empty string" in str(failed.value)
    assert np.array_equal(failed.value.partial.numpy()[:200], rows_of(TEXTS))


def test_wrong_inputs_that_fail_alone_are_not_done(server: Server) -> None:
    with Client(url(server), preference=RequestProcessingPreference(batch_size=3)) as client:
        answer = client.embed([*TEXTS[:4], "", *TEXTS[4:6]], extra_body={"on_error": "null"})
    assert answer.done.tolist() == [True] * 4 + [False] + [True] * 2
    assert np.array_equal(answer.numpy()[answer.done], rows_of(TEXTS[:6]))
    assert np.isnan(answer.numpy()[4]).all()


def test_labels_are_refused_by_a_model_that_has_none(server: Server) -> None:
    with Client(url(server)) as client, pytest.raises(RequestFailed, match=r"HTTP 424: .*no scores of texts"):
        client.classify(["text"])


def test_more_inputs_than_the_server_takes(server: Server) -> None:
    many = TEXTS * 12
    with Client(url(server), preference=RequestProcessingPreference(batch_size=2400)) as client:
        answer = client.embed(many)
    assert np.array_equal(answer.numpy(), np.tile(rows_of(TEXTS), (12, 1)))


def test_hedged_requests_have_the_same_rows(server: Server) -> None:
    preference = RequestProcessingPreference(batch_size=7, hedge_delay=0.001, hedge_budget_pct=1.0)
    with Client([url(server)] * 2, preference=preference) as client:
        assert np.array_equal(client.embed(TEXTS).numpy(), rows_of(TEXTS))


def test_a_deadline_that_no_server_can_meet(server: Server) -> None:
    preference = RequestProcessingPreference(total_timeout_s=0.001)
    with Client(url(server)) as client, pytest.raises(DeadlineExceeded):
        client.embed(TEXTS, preference=preference)


def test_cancelling(server: Server) -> None:
    token = CancellationToken()
    preference = RequestProcessingPreference(batch_size=1, max_concurrent_requests=2, cancel_token=token)
    with Client(url(server), preference=preference) as client:
        found = client.iter_embed(TEXTS * 100)
        next(found)
        threading.Thread(target=token.cancel).start()
        with pytest.raises(Cancelled):
            list(found)
        assert np.array_equal(client.embed("text", preference=BATCHES).numpy(), rows_of(["text"]))


def test_asyncio(server: Server) -> None:
    async def many() -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        async with AsyncClient(url(server), preference=BATCHES) as client:
            answers = await asyncio.gather(*(client.embed(text) for text in TEXTS[:40]))
            return np.concatenate([answer.numpy() for answer in answers])

    assert np.array_equal(asyncio.run(many()), rows_of(TEXTS[:40]))
    assert rows_of(TEXTS[:1]).shape == (1, DIMENSIONS)

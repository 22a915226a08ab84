"""Baseten's performance client, unchanged: many texts in many requests at once, and its errors."""

import asyncio
import base64

import numpy as np
import pytest
from baseten_performance_client import OpenAIEmbeddingsResponse, PerformanceClient, RequestProcessingPreference

from tests.server_e2e.expected import DIMENSIONS, ids_of, rows_of
from tests.server_e2e.running import Server

pytestmark = pytest.mark.clients

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = [f"text number {number} " + "and more " * (number % 30) for number in range(200)]
# 29 requests, the last one smaller
IN_BATCHES = RequestProcessingPreference(batch_size=7, max_concurrent_requests=8, timeout_s=60, max_retries=0)


@pytest.fixture
def client(server: Server) -> PerformanceClient:
    return PerformanceClient(base_url=f"http://127.0.0.1:{server.port}", api_key="none")


def test_many_texts_in_batches(client: PerformanceClient) -> None:
    response = client.embed(input=TEXTS, model=MODEL, preference=IN_BATCHES)

    assert np.array_equal(response.numpy(), rows_of(TEXTS))
    assert response.model == MODEL
    assert [item.index for item in response.data] == list(range(len(TEXTS)))
    assert response.usage.prompt_tokens == sum(len(ids_of(text)) for text in TEXTS)
    assert len(response.individual_request_times or ()) == 29


def test_its_own_way_of_batching(client: PerformanceClient) -> None:
    response = client.embed(input=TEXTS, model=MODEL)
    assert np.array_equal(response.numpy(), rows_of(TEXTS))


def test_dimensions_and_user(client: PerformanceClient) -> None:
    response = client.embed(input=TEXTS[:3], model=MODEL, dimensions=5, user="somebody")
    assert np.array_equal(response.numpy(), rows_of(TEXTS[:3])[:, :5])


def test_base64(client: PerformanceClient) -> None:
    response = client.embed(input=TEXTS[:3], model=MODEL, encoding_format="base64")

    texts = [item.embedding for item in response.data]
    rows = [np.frombuffer(base64.b64decode(text), "<f4") for text in texts if isinstance(text, str)]
    assert np.array_equal(np.stack(rows), rows_of(TEXTS[:3]))


def test_the_asynchronous_call(client: PerformanceClient) -> None:
    async def embed() -> OpenAIEmbeddingsResponse:
        return await client.async_embed(input=TEXTS, model=MODEL, preference=IN_BATCHES)

    assert np.array_equal(asyncio.run(embed()).numpy(), rows_of(TEXTS))


def test_a_bad_request_says_why(client: PerformanceClient) -> None:
    with pytest.raises(Exception, match="dimensions must be from 1 to") as refused:
        client.embed(input=TEXTS[:1], model=MODEL, dimensions=DIMENSIONS + 1)

    assert "400" in str(refused.value)

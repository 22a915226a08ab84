"""Reranking by Baseten's performance client, unchanged; the server's embedding model ranks by cosines."""

import numpy as np
import pytest
from baseten_performance_client import PerformanceClient, RequestProcessingPreference

from tests.server_e2e.expected import rows_of
from tests.server_e2e.running import Server

pytestmark = [pytest.mark.clients, pytest.mark.holds("Reranking")]

TEXTS = [f"text number {number} " + "and more " * (number % 30) for number in range(50)]
IN_BATCHES = RequestProcessingPreference(batch_size=7, max_concurrent_requests=8, timeout_s=60, max_retries=0)


@pytest.fixture
def client(server: Server) -> PerformanceClient:
    return PerformanceClient(base_url=f"http://127.0.0.1:{server.port}", api_key="none")


def test_every_text_gets_its_score(client: PerformanceClient) -> None:
    response = client.rerank(query="a query", texts=TEXTS, return_text=True, truncate=True, preference=IN_BATCHES)

    query, *rows = rows_of(["a query", *TEXTS]).astype(np.float64)
    found = {item.index: item for item in response.data}
    assert sorted(found) == list(range(len(TEXTS)))
    for index, row in enumerate(rows):
        cosine = row @ query / np.linalg.norm(row) / np.linalg.norm(query)
        assert found[index].score == pytest.approx(cosine, abs=1e-5)
        assert found[index].text == TEXTS[index]


def test_a_text_that_is_too_long_is_an_error_unless_it_may_be_cut(client: PerformanceClient) -> None:
    with pytest.raises(Exception, match="texts\\[1\\] is longer than 256 tokens and truncation is off"):
        client.rerank(query="a query", texts=["short", "long " * 1000], preference=IN_BATCHES)

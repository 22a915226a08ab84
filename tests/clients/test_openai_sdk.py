"""OpenAI's own SDK, unchanged: every form of input, every form of answer, its own errors."""

import asyncio
from collections.abc import Iterator

import numpy as np
import openai
import pytest
from numpy.typing import NDArray
from openai.types import CreateEmbeddingResponse

from tests.server_e2e.expected import DIMENSIONS, ids_of, row_of_ids, rows_of
from tests.server_e2e.running import Server

pytestmark = pytest.mark.clients

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = ["hello world", "naïve 日本語 🙂", " ", "word " * 300]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def rows_in(response: CreateEmbeddingResponse) -> NDArray[np.float32]:
    assert [item.index for item in response.data] == list(range(len(response.data)))
    return np.array([item.embedding for item in response.data], np.float32)


def test_a_list_of_texts_in_base64_as_the_sdk_asks_by_itself(client: openai.OpenAI) -> None:
    response = client.embeddings.create(model=MODEL, input=TEXTS)

    assert np.array_equal(rows_in(response), rows_of(TEXTS))
    assert response.model == MODEL
    assert response.usage.prompt_tokens == response.usage.total_tokens == sum(len(ids_of(text)) for text in TEXTS)


def test_floats(client: openai.OpenAI) -> None:
    response = client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float")
    assert np.array_equal(rows_in(response), rows_of(TEXTS))


def test_one_text_under_any_model_name(client: openai.OpenAI) -> None:
    response = client.embeddings.create(model="text-embedding-3-small", input="hello world", user="somebody")

    assert np.array_equal(rows_in(response), rows_of(["hello world"]))
    assert response.model == MODEL


def test_dimensions(client: openai.OpenAI) -> None:
    response = client.embeddings.create(model=MODEL, input=TEXTS, dimensions=5)
    assert np.array_equal(rows_in(response), rows_of(TEXTS)[:, :5])


def test_token_ids(client: openai.OpenAI) -> None:
    ids = [101, 7592, 2088, 102]

    one = client.embeddings.create(model=MODEL, input=ids)
    two = client.embeddings.create(model=MODEL, input=[ids, [101, 5, 102]])

    assert np.array_equal(rows_in(one), rows_of(["hello world"]))
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        client.embeddings.create(model=MODEL, input=[[9906, 1917]])  # as LangChain sends them by default
    assert np.array_equal(rows_in(two), np.stack([row_of_ids(ids), row_of_ids([101, 5, 102])]))


@pytest.mark.holds("OpenAI's route")
@pytest.mark.parametrize(
    ("extra_body", "extra_headers"),
    [({"encoding_format": "bytes"}, {}), ({}, {"accept": "application/octet-stream"})],
)
def test_raw_bytes(client: openai.OpenAI, extra_body: dict[str, str], extra_headers: dict[str, str]) -> None:
    response = client.embeddings.with_raw_response.create(
        model=MODEL, input=TEXTS, extra_body=extra_body, extra_headers=extra_headers
    )

    shape = [int(number) for number in response.headers["x-embedline-shape"].split(",")]
    assert shape == [len(TEXTS), DIMENSIONS]
    assert response.headers["x-embedline-dtype"] == "float32"
    assert np.array_equal(np.frombuffer(response.content, "<f4").reshape(shape), rows_of(TEXTS))


def test_the_asynchronous_client(server: Server) -> None:
    async def many() -> list[CreateEmbeddingResponse]:
        url = f"http://127.0.0.1:{server.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(
                *(client.embeddings.create(model=MODEL, input=f"text {number}") for number in range(40))
            )

    rows = np.concatenate([rows_in(response) for response in asyncio.run(many())])
    assert np.array_equal(rows, rows_of([f"text {number}" for number in range(40)]))


def test_a_bad_request_is_the_sdks_own_error_and_names_the_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model=MODEL, input=["fine", ""])

    assert refused.value.param == "input[1]"
    assert refused.value.type == "invalid_request_error"
    assert "input[1] must not be an empty string" in str(refused.value)


def test_other_errors_are_the_sdks_own_too(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.embeddings.create(model=MODEL, input="a", dimensions=DIMENSIONS + 1)
    assert wrong.value.param == "dimensions"

    with pytest.raises(openai.NotFoundError) as nowhere:
        client.moderations.create(input="a")
    assert nowhere.value.code == "unknown_url"


def test_the_list_of_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert (model.id, model.owned_by) == (MODEL, "embedline")
    assert model.created > 0

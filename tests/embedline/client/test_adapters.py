"""The client behind other libraries' interfaces, each where its library is installed."""

import asyncio
import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.embedline.client.stub import WIDTH, Stub, raw, rows_of, stub, texts

pytestmark = pytest.mark.clients


@pytest.fixture
def server() -> Iterator[Stub]:
    with stub(lambda seen: [raw(seen.texts)]) as running:
        yield running


def adapter(name: str, library: str) -> Any:
    """A module of embedline.adapters."""
    pytest.importorskip(library)
    return importlib.import_module(f"embedline.adapters.{name}")


def test_langchain(server: Stub) -> None:
    embeddings = adapter("langchain", "langchain_core").EmbedlineEmbeddings(
        server.url, "secret", model="m", query_fields={"prompt_name": "query"}
    )
    base = importlib.import_module("langchain_core.embeddings").Embeddings

    assert isinstance(embeddings, base)
    assert embeddings.embed_documents(texts(300)) == rows_of(texts(300)).tolist()
    assert embeddings.embed_query("text 5") == rows_of(["text 5"])[0].tolist()
    assert asyncio.run(embeddings.aembed_documents(texts(3))) == rows_of(texts(3)).tolist()
    assert asyncio.run(embeddings.aembed_query("text 5")) == rows_of(["text 5"])[0].tolist()
    assert server.seen[0].headers["authorization"] == "Bearer secret"
    assert [seen.json().get("prompt_name") for seen in server.seen[-3:]] == ["query", None, "query"]


of_sides = pytest.mark.parametrize(
    ("sends", "fields", "of_query", "of_documents"),
    [
        (True, None, ("query", None), "document"),
        (False, None, (None, None), None),
        (True, {"prompt_name": "other"}, (None, "other"), "document"),  # it says what queries are for
    ],
)
Said = tuple[str | None, str | None]  # a request's input_type and prompt_name


def said(server: Stub) -> list[Said]:
    """What the requests so far say of their texts."""
    return [(seen.json().get("input_type"), seen.json().get("prompt_name")) for seen in server.seen]


@of_sides
def test_langchain_says_which_side_of_a_search_texts_are(
    server: Stub, sends: bool, fields: dict[str, str] | None, of_query: Said, of_documents: str | None
) -> None:
    made = adapter("langchain", "langchain_core").EmbedlineEmbeddings
    embeddings = made(server.url, send_input_type=sends, query_fields=fields)

    embeddings.embed_query("text 5")
    asyncio.run(embeddings.aembed_query("text 5"))
    embeddings.embed_documents(["text 5"])
    asyncio.run(embeddings.aembed_documents(["text 5"]))

    assert said(server) == [of_query, of_query, (of_documents, None), (of_documents, None)]


@of_sides
def test_llama_index_says_which_side_of_a_search_texts_are(
    server: Stub, sends: bool, fields: dict[str, str] | None, of_query: Said, of_documents: str | None
) -> None:
    made = adapter("llama_index", "llama_index.core").EmbedlineEmbedding
    embedding = made(server.url, send_input_type=sends, query_fields=fields)

    embedding.get_query_embedding("text 5")
    asyncio.run(embedding.aget_query_embedding("text 5"))
    embedding.get_text_embedding("text 5")
    asyncio.run(embedding.aget_text_embedding_batch(["text 5"]))

    assert said(server) == [of_query, of_query, (of_documents, None), (of_documents, None)]


@of_sides
def test_haystack_says_which_side_of_a_search_texts_are(
    server: Stub, sends: bool, fields: dict[str, str] | None, of_query: Said, of_documents: str | None
) -> None:
    module = adapter("haystack", "haystack")
    haystack = importlib.import_module("haystack")
    pipeline = haystack.Pipeline()
    pipeline.add_component("query", module.EmbedlineTextEmbedder(server.url, fields=fields, send_input_type=sends))
    stored = haystack.Pipeline.loads(pipeline.dumps(), allowed_modules=["embedline.adapters.haystack"])

    stored.run({"query": {"text": "text 5"}})
    documents = module.EmbedlineDocumentEmbedder(server.url, send_input_type=sends)
    documents.run([haystack.Document(content="text 5")])

    assert said(server) == [of_query, (of_documents, None)]


def test_llama_index(server: Stub) -> None:
    embedding = adapter("llama_index", "llama_index.core").EmbedlineEmbedding(
        server.url, model_name="m", query_fields={"prompt_name": "query"}
    )
    base = importlib.import_module("llama_index.core.base.embeddings.base").BaseEmbedding

    assert isinstance(embedding, base)
    assert embedding.get_text_embedding_batch(texts(300)) == rows_of(texts(300)).tolist()
    assert embedding.get_text_embedding("text 5") == rows_of(["text 5"])[0].tolist()
    assert embedding.get_query_embedding("text 5") == rows_of(["text 5"])[0].tolist()
    assert asyncio.run(embedding.aget_text_embedding_batch(texts(3))) == rows_of(texts(3)).tolist()
    assert asyncio.run(embedding.aget_query_embedding("text 5")) == rows_of(["text 5"])[0].tolist()
    assert {seen.json()["model"] for seen in server.seen} == {"m"}
    assert sum(seen.json().get("prompt_name") == "query" for seen in server.seen) == 2


def test_llama_index_sends_dimensions_and_refuses_unknown_names(server: Stub) -> None:
    made = adapter("llama_index", "llama_index.core").EmbedlineEmbedding
    embedding = made(server.url, dimensions=WIDTH, embed_batch_size=2)

    embedding.get_text_embedding_batch(texts(3))
    embedding.get_query_embedding("text 5")
    asyncio.run(embedding.aget_text_embedding_batch(texts(3)))
    asyncio.run(embedding.aget_query_embedding("text 5"))

    assert {seen.json()["dimensions"] for seen in server.seen} == {WIDTH}
    with pytest.raises(TypeError, match=r"^EmbedlineEmbedding has no argument apikey, dimension$"):
        made(server.url, apikey="secret", dimension=WIDTH)


def test_haystack(server: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    module = adapter("haystack", "haystack")
    haystack = importlib.import_module("haystack")
    secret = importlib.import_module("haystack.utils").Secret
    monkeypatch.setenv("A_KEY", "key-of-haystack")
    documents = [haystack.Document(content=text) for text in texts(3)]

    embedder = module.EmbedlineTextEmbedder(server.url, secret.from_env_var("A_KEY"), fields={"prompt_name": "query"})
    pipeline = haystack.Pipeline()
    pipeline.add_component("query", embedder)
    stored = haystack.Pipeline.loads(pipeline.dumps(), allowed_modules=["embedline.adapters.haystack"])
    of_documents = module.EmbedlineDocumentEmbedder(server.url, model="m")

    assert stored.run({"query": {"text": "text 5"}})["query"]["embedding"] == rows_of(["text 5"])[0].tolist()
    assert [one.embedding for one in of_documents.run(documents)["documents"]] == rows_of(texts(3)).tolist()
    assert of_documents.run([]) == {"documents": []}
    assert server.seen[0].headers["authorization"] == "Bearer key-of-haystack"
    assert server.seen[0].json()["prompt_name"] == "query"
    assert "key-of-haystack" not in pipeline.dumps()

"""Haystack's embedders and rankers over several APIs."""

from typing import Any

from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import HuggingFaceAPIDocumentEmbedder
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from report import Result, ranked, rows, run


def embed(task: Any) -> Result:
    key = Secret.from_token(task.key)
    embedder = OpenAIDocumentEmbedder(
        api_base_url=f"{task.url}/v1", api_key=key, model="m", progress_bar=False, raise_on_failure=True
    )
    return rows(one.embedding for one in embedder.run([Document(content=text) for text in task.texts])["documents"])


def embed_one(task: Any) -> Result:
    embedder = OpenAITextEmbedder(api_base_url=f"{task.url}/v1", api_key=Secret.from_token(task.key), model="m")
    return rows(embedder.run(text)["embedding"] for text in task.texts)


def embed_tei(task: Any) -> Result:
    embedder = HuggingFaceAPIDocumentEmbedder(
        api_type="text_embeddings_inference",
        api_params={"url": task.url},
        token=Secret.from_token(task.key),
        normalize=False,
        truncate=True,
        progress_bar=False,
    )
    return rows(one.embedding for one in embedder.run([Document(content=text) for text in task.texts])["documents"])


def rerank(task: Any) -> Result:
    ranker = HuggingFaceTEIRanker(url=task.url, token=Secret.from_token(task.key), top_k=len(task.documents))
    documents = [Document(content=text, meta={"number": n}) for n, text in enumerate(task.documents)]
    found = ranker.run(query=task.query, documents=documents)["documents"]
    return ranked((one.meta["number"], one.score) for one in found)


run(embed, embed_one, embed_tei, rerank)

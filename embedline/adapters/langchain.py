"""LangChain's `Embeddings` by the client: pip install 'embedline[langchain]'."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.embeddings import Embeddings

from embedline.client.async_client import AsyncClient
from embedline.client.client import Client
from embedline.client.preference import RequestProcessingPreference


class EmbedlineEmbeddings(Embeddings):
    """Texts are sent as texts, many in one request and several requests at a time.

    `query_fields` and `document_fields` are more fields of the requests for queries and for documents, as
    `{"prompt_name": "query"}`.
    """

    def __init__(
        self,
        base_url: str | Sequence[str],
        api_key: str | None = None,
        *,
        model: str | None = None,
        dimensions: int | None = None,
        query_fields: Mapping[str, Any] | None = None,
        document_fields: Mapping[str, Any] | None = None,
        preference: RequestProcessingPreference | None = None,
    ) -> None:
        self._client = Client(base_url, api_key, model=model, preference=preference)
        self._async_client = AsyncClient(base_url, api_key, model=model, preference=preference)
        self._dimensions = dimensions
        self._query_fields = query_fields
        self._document_fields = document_fields

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A row for each text."""
        answer = self._client.embed(texts, dimensions=self._dimensions, extra_body=self._document_fields)
        return cast(list[list[float]], answer.numpy().tolist())

    def embed_query(self, text: str) -> list[float]:
        """The row of a query."""
        answer = self._client.embed(text, dimensions=self._dimensions, extra_body=self._query_fields)
        return cast(list[float], answer.numpy()[0].tolist())

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """A row for each text."""
        answer = await self._async_client.embed(texts, dimensions=self._dimensions, extra_body=self._document_fields)
        return cast(list[list[float]], answer.numpy().tolist())

    async def aembed_query(self, text: str) -> list[float]:
        """The row of a query."""
        answer = await self._async_client.embed(text, dimensions=self._dimensions, extra_body=self._query_fields)
        return cast(list[float], answer.numpy()[0].tolist())

"""LangChain's `Embeddings` by the client: pip install 'embedline[langchain]'."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.embeddings import Embeddings

from embedline.adapters import fields_of_side
from embedline.client.async_client import AsyncClient
from embedline.client.client import Client
from embedline.client.preference import RequestProcessingPreference


class EmbedlineEmbeddings(Embeddings):
    """Texts are sent as texts, many in one request and several requests at a time.

    Each request says whether its texts are queries or documents (`input_type`), and the model's prompt for these is put
    before them. `send_input_type=False` leaves that out, as earlier versions did. `query_fields` and `document_fields`
    are more fields of the requests for queries and for documents; a prompt in them, as `{"prompt_name": "other"}`,
    takes the place of `input_type`.
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
        send_input_type: bool = True,
        preference: RequestProcessingPreference | None = None,
    ) -> None:
        self._client = Client(base_url, api_key, model=model, preference=preference)
        self._async_client = AsyncClient(base_url, api_key, model=model, preference=preference)
        self._dimensions = dimensions
        self._query_fields = fields_of_side("query", query_fields, send_input_type=send_input_type)
        self._document_fields = fields_of_side("document", document_fields, send_input_type=send_input_type)

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

"""LlamaIndex's `BaseEmbedding` by the client: pip install 'embedline[llama-index]'."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from embedline.adapters import fields_of_side
from embedline.client.async_client import AsyncClient
from embedline.client.client import Client
from embedline.client.preference import RequestProcessingPreference


class EmbedlineEmbedding(BaseEmbedding):
    """LlamaIndex cuts texts into batches of `embed_batch_size` itself; the client sends the parts of one side by side.

    Each request says whether its texts are queries or documents (`input_type`), and the model's prompt for these is put
    before them. `send_input_type=False` leaves that out, as earlier versions did. `query_fields` and `text_fields` are
    more fields of the requests for queries and for texts; a prompt in them, as `{"prompt_name": "other"}`, takes the
    place of `input_type`.
    """

    _client: Client = PrivateAttr()
    _async_client: AsyncClient = PrivateAttr()
    _dimensions: int | None = PrivateAttr()
    _query_fields: Mapping[str, Any] = PrivateAttr()
    _text_fields: Mapping[str, Any] = PrivateAttr()

    def __init__(
        self,
        base_url: str | Sequence[str],
        api_key: str | None = None,
        *,
        model_name: str = "unknown",
        dimensions: int | None = None,
        query_fields: Mapping[str, Any] | None = None,
        text_fields: Mapping[str, Any] | None = None,
        send_input_type: bool = True,
        preference: RequestProcessingPreference | None = None,
        **more: Any,
    ) -> None:
        """`more`: what LlamaIndex's own embeddings take. Raises TypeError for other names, which it passes over."""
        if unknown := more.keys() - type(self).model_fields.keys():
            raise TypeError(f"EmbedlineEmbedding has no argument {', '.join(sorted(unknown))}")
        super().__init__(model_name=model_name, **{"embed_batch_size": 1024, **more})
        model = None if model_name == "unknown" else model_name  # LlamaIndex's word for none
        self._client = Client(base_url, api_key, model=model, preference=preference)
        self._async_client = AsyncClient(base_url, api_key, model=model, preference=preference)
        self._dimensions = dimensions
        self._query_fields = fields_of_side("query", query_fields, send_input_type=send_input_type)
        self._text_fields = fields_of_side("document", text_fields, send_input_type=send_input_type)

    @classmethod
    def class_name(cls) -> str:
        """The name by which LlamaIndex stores it."""
        return "EmbedlineEmbedding"

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        answer = self._client.embed(texts, dimensions=self._dimensions, extra_body=self._text_fields)
        return cast(list[list[float]], answer.numpy().tolist())

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        answer = self._client.embed(query, dimensions=self._dimensions, extra_body=self._query_fields)
        return cast(list[float], answer.numpy()[0].tolist())

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        answer = await self._async_client.embed(texts, dimensions=self._dimensions, extra_body=self._text_fields)
        return cast(list[list[float]], answer.numpy().tolist())

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        answer = await self._async_client.embed(query, dimensions=self._dimensions, extra_body=self._query_fields)
        return cast(list[float], answer.numpy()[0].tolist())

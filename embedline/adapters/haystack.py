"""Haystack's text and document embedders by the client: pip install 'embedline[haystack]'."""

from dataclasses import replace
from typing import Any, cast

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.utils import Secret, deserialize_secrets_inplace

from embedline.adapters import fields_of_side
from embedline.client.client import Client


class _Embedder:
    """The parts that both have: their arguments, which Haystack stores, and the client."""

    _side: str  # of a search

    def __init__(
        self,
        base_url: str,
        api_key: Secret | None = None,
        *,
        model: str | None = None,
        dimensions: int | None = None,
        fields: dict[str, Any] | None = None,
        send_input_type: bool = True,
    ) -> None:
        """Each request says whether its texts are queries or documents (`input_type`), and the model's prompt for these
        is put before them; `send_input_type=False` leaves that out, as earlier versions did. `fields`: more fields of
        each request; a prompt in them, as `{"prompt_name": "other"}`, takes the place of `input_type`."""
        self._arguments: dict[str, Any] = {
            "base_url": base_url,
            "model": model,
            "dimensions": dimensions,
            "fields": fields,
            "send_input_type": send_input_type,
        }
        self._fields = fields_of_side(self._side, fields, send_input_type=send_input_type)
        self._api_key = api_key
        self._client = Client(base_url, None if api_key is None else api_key.resolve_value(), model=model)

    def to_dict(self) -> dict[str, Any]:
        """The arguments for a stored pipeline; of the key only where it comes from."""
        key = None if self._api_key is None else self._api_key.to_dict()
        return cast(dict[str, Any], default_to_dict(self, api_key=key, **self._arguments))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Make one from a stored pipeline."""
        deserialize_secrets_inplace(data["init_parameters"], keys=["api_key"])
        return default_from_dict(cls, data)

    def _embed(self, texts: list[str]) -> list[list[float]]:
        answer = self._client.embed(texts, dimensions=self._arguments["dimensions"], extra_body=self._fields)
        return cast(list[list[float]], answer.numpy().tolist())


@component
class EmbedlineTextEmbedder(_Embedder):
    """Embeds one text, as a query."""

    _side = "query"

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        """The text's row."""
        return {"embedding": self._embed([text])[0]}


@component
class EmbedlineDocumentEmbedder(_Embedder):
    """Embeds the contents of documents."""

    _side = "document"

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """The documents with their rows."""
        rows = self._embed([document.content or "" for document in documents])
        return {"documents": [replace(document, embedding=row) for document, row in zip(documents, rows, strict=True)]}

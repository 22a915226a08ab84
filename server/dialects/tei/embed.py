"""The routes of text-embeddings-inference for embedding models.

https://huggingface.github.io/text-embeddings-inference
"""

from functools import partial
from typing import Any, Protocol

from engine.types import OutputKind
from server.dialects.tei import tokens
from server.dialects.tei.answers import all_headers, encode, encoding_of
from server.dialects.tei.bodies import (
    EmbedAllBody,
    EmbedBody,
    Form,
    SimilarityBody,
    decode_embed,
    decode_embed_all,
    decode_similarity,
)
from server.dialects.writing.ragged import SCHEMA as RAGGED
from server.http.headers import Wishes
from server.http.route import Answer, Call, Route
from server.requests.errors import tei_answer
from server.requests.late_interaction import compared_rows
from server.requests.models import ModelTable
from server.requests.pipeline import EmbedRequest


class Decode(Protocol):
    """What is asked for in a body, and in which form it goes out."""

    def __call__(self, body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int) -> tuple[EmbedRequest, Form]:
        """Raises RequestError, naming the field or index."""
        ...


async def embed(call: Call, decode: Decode) -> Answer:
    """Every route that computes."""
    body = await call.body()
    with call.held(body):
        request, form = decode(body, call.wishes, call.models, max_items=call.resources.max_items)
        del body  # what is in it was copied out
        call.trace.encoding = encoding_of(form).value
        if request.outputs is OutputKind.MULTI_VECTOR:
            embedded = await compared_rows(call.resources.pipeline, request, call.trace)
        else:
            embedded = await call.resources.pipeline.embed(request, call.trace)
    return 200, all_headers(embedded, form, call.trace), await encode(embedded, form)


_ROW: dict[str, Any] = {"type": "array", "items": {"type": "number"}}
_ROWS: dict[str, Any] = {"type": "array", "items": _ROW}
_RAW: dict[str, Any] = {"type": "string", "format": "binary"}


def _route(path: str, decode: Decode, summary: str, *, body: type, responses: dict[str, Any]) -> Route:
    return Route(
        path=path,
        handler=partial(embed, decode=decode),
        error_shape=tei_answer,
        summary=summary,
        body=body,
        responses=responses,
    )


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": schema}


ROUTES: tuple[Route, ...] = (
    _route(
        "/embed",
        decode_embed,
        "Embeddings, as TEI has them",
        body=EmbedBody,
        responses={**_json(_ROWS), "application/octet-stream": _RAW},
    ),
    _route(
        "/embed_all",
        decode_embed_all,
        "A row for each token of each input",
        body=EmbedAllBody,
        responses={**_json({"type": "array", "items": _ROWS}), "application/octet-stream": RAGGED},
    ),
    _route(
        "/similarity",
        decode_similarity,
        "Cosines of a sentence with others",
        body=SimilarityBody,
        responses=_json(_ROW),
    ),
    Route(
        path="/tokenize",
        handler=tokens.tokenize,
        error_shape=tei_answer,
        summary="The tokens of texts, one by one",
        body=tokens.TokenizeBody,
        responses=_json(tokens.TOKENS_SCHEMA),
    ),
    Route(
        path="/decode",
        handler=tokens.decode,
        error_shape=tei_answer,
        summary="The texts of token ids",
        body=tokens.DecodeBody,
        responses=_json(tokens.TEXTS_SCHEMA),
    ),
)

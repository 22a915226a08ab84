"""What comes in on text-embeddings-inference's own routes for embedding models: a decoder for each.

https://github.com/huggingface/text-embeddings-inference, router/src/http/types.rs. `model` is ours, for a server of
several; fields that are not named here are ignored.
"""

import enum
from dataclasses import replace
from typing import Annotated

import msgspec

from engine.types import OutputKind
from server.dialects.reading.inputs import SCHEMA, read_dimensions, read_inputs, read_prompt, read_texts
from server.dialects.reading.json_body import parse, parse_body
from server.http.headers import Wishes
from server.requests.errors import EmptyInput, InvalidRequest
from server.requests.models import ModelTable, ServedModel
from server.requests.pipeline import EmbedRequest
from tokenizer_pool.messages import Truncation

_DIRECTIONS = {
    "left": Truncation.LEFT,
    "Left": Truncation.LEFT,
    "right": Truncation.RIGHT,
    "Right": Truncation.RIGHT,
}
_SIMILARITY_SCHEMA = {
    "type": "object",
    "properties": {
        "source_sentence": {"type": "string"},
        "sentences": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["source_sentence", "sentences"],
}


class Form(enum.Enum):
    """What goes out."""

    ROWS = "rows"
    RAW_ROWS = "raw rows"
    TOKEN_ROWS = "token rows"
    RAW_TOKEN_ROWS = "raw token rows"
    SIMILARITIES = "similarities"


class Truncating(msgspec.Struct, kw_only=True):
    """What becomes of texts that are too long."""

    truncate: bool | None = None  # None = as --auto-truncate says
    truncation_direction: str | None = None


class Parameters(Truncating):
    """How texts become tokens."""

    prompt_name: str | None = None


class InputsBody(Parameters, kw_only=True):
    """What the bodies of all routes that embed have in common."""

    inputs: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=SCHEMA)]
    model: str | None = None


class EmbedAllBody(InputsBody, kw_only=True):
    """The body of POST /embed_all."""

    input_type: str | None = None  # ours: query or document (None too), which differ in late-interaction models


class EmbedBody(InputsBody, kw_only=True):
    """The body of POST /embed."""

    normalize: bool | None = None  # None = true
    dimensions: int | None = None


class SimilarityInputs(msgspec.Struct):
    """A sentence, and those it is compared with."""

    source_sentence: str
    sentences: msgspec.Raw


class SimilarityBody(msgspec.Struct, kw_only=True):
    """The body of POST /similarity."""

    inputs: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_SIMILARITY_SCHEMA)]
    parameters: Parameters | None = None
    model: str | None = None


class AnyBody(EmbedBody):
    """The body of POST /: that of /embed, or that of /similarity where `inputs` is an object."""

    parameters: Parameters | None = None


_EMBED = msgspec.json.Decoder(EmbedBody)
_EMBED_ALL = msgspec.json.Decoder(EmbedAllBody)
_SIMILARITY = msgspec.json.Decoder(SimilarityBody)
_SIMILARITY_INPUTS = msgspec.json.Decoder(SimilarityInputs)
_ANY = msgspec.json.Decoder(AnyBody)


def decode_embed(body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int) -> tuple[EmbedRequest, Form]:
    """POST /embed. As all decoders here raises RequestError, naming the field or index."""
    return _embed(parse_body(_EMBED, body), wishes, models, max_items=max_items)


def decode_embed_all(body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int) -> tuple[EmbedRequest, Form]:
    """POST /embed_all."""
    fields = parse_body(_EMBED_ALL, body)
    request = read_request(fields, wishes, models, max_items=max_items)
    form = Form.RAW_TOKEN_ROWS if wishes.raw_bytes else Form.TOKEN_ROWS
    is_query, outputs = read_is_query(fields.input_type), request.model.outputs
    if OutputKind.MULTI_VECTOR in outputs and OutputKind.TOKENS not in outputs:
        return for_late_interaction(request, is_query=is_query), form
    if fields.input_type is not None and OutputKind.TOKENS in outputs:
        raise InvalidRequest(
            "input_type can't be given: this model takes queries and documents alike", param="input_type"
        )
    return replace(request, outputs=OutputKind.TOKENS, normalize=False), form


def decode_similarity(body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int) -> tuple[EmbedRequest, Form]:
    """POST /similarity: the source sentence is the first of the request's texts."""
    return _similarity(parse_body(_SIMILARITY, body), wishes, models, max_items=max_items)


def decode_any(body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int) -> tuple[EmbedRequest, Form]:
    """POST /: what is wanted shows in the form of `inputs`."""
    fields = parse_body(_ANY, body)
    if bytes(memoryview(fields.inputs)[:1]) == b"{":
        return _similarity(fields, wishes, models, max_items=max_items)
    return _embed(fields, wishes, models, max_items=max_items)


def for_late_interaction(request: EmbedRequest, *, is_query: bool) -> EmbedRequest:
    """With the markers and lengths of queries, or of documents."""
    num_queries = request.num_items if is_query else 0
    return replace(request, outputs=OutputKind.MULTI_VECTOR, num_queries=num_queries, query_prompt=request.prompt)


def read_is_query(input_type: str | None) -> bool:
    """Raises InvalidRequest."""
    if input_type not in (None, "query", "document"):
        raise InvalidRequest("input_type must be query or document", param="input_type")
    return input_type == "query"


def _embed(fields: EmbedBody, wishes: Wishes, models: ModelTable, *, max_items: int) -> tuple[EmbedRequest, Form]:
    request = read_request(fields, wishes, models, max_items=max_items)
    dimensions = read_dimensions(fields.dimensions, request.model.dimensions)
    form = Form.RAW_ROWS if wishes.raw_bytes else Form.ROWS
    return replace(request, dimensions=dimensions, normalize=fields.normalize is not False), form


def read_request(fields: InputsBody, wishes: Wishes, models: ModelTable, *, max_items: int) -> EmbedRequest:
    """What is the same for all routes that embed."""
    model = models.choose(fields.model)
    given = read_inputs(fields.inputs, "inputs", max_items=max_items)
    return EmbedRequest(
        model=model,
        texts=given.texts,
        token_ids=given.token_ids,
        prompt=read_prompt(fields.prompt_name, given, model),
        truncation=read_truncation(fields, model),
        request_class=wishes.request_class,
        deadline=wishes.deadline,
        field="inputs",
        is_single=given.is_single,
    )


def _similarity(
    fields: SimilarityBody | AnyBody, wishes: Wishes, models: ModelTable, *, max_items: int
) -> tuple[EmbedRequest, Form]:
    model = models.choose(fields.model)
    inputs = parse(_SIMILARITY_INPUTS, fields.inputs, "inputs")
    given = read_texts(inputs.sentences, "inputs.sentences", max_items=max_items)
    if given.is_single:
        raise InvalidRequest("inputs.sentences must be a list of texts", param="inputs.sentences")
    if not inputs.source_sentence:
        raise EmptyInput("inputs.source_sentence must not be empty", param="inputs.source_sentence")
    parameters = fields.parameters or Parameters()
    request = EmbedRequest(
        model=model,
        texts=[inputs.source_sentence, *(given.texts or ())],
        prompt=read_prompt(parameters.prompt_name, given, model),
        truncation=read_truncation(parameters, model),
        normalize=True,
        request_class=wishes.request_class,
        deadline=wishes.deadline,
        field="inputs.sentences",
        first_field="inputs.source_sentence",
    )
    return request, Form.SIMILARITIES


def read_truncation(parameters: Truncating, model: ServedModel) -> Truncation:
    """Raises InvalidRequest."""
    wished = parameters.truncation_direction
    direction = Truncation.RIGHT if wished is None else _DIRECTIONS.get(wished)
    if direction is None:
        raise InvalidRequest("truncation_direction must be left or right", param="truncation_direction")
    is_on = model.truncation is not Truncation.NONE if parameters.truncate is None else parameters.truncate
    return direction if is_on else Truncation.NONE

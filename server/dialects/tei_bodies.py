"""What comes in on text-embeddings-inference's own routes for embedding models: a decoder for each.

https://github.com/huggingface/text-embeddings-inference, router/src/http/types.rs. `model` is ours, for a server of
several; fields that are not named here are ignored.
"""

import enum
from dataclasses import replace
from typing import Annotated

import msgspec

from engine.types import OutputKind
from server.dialects.inputs import SCHEMA, read_dimensions, read_inputs, read_prompt, read_texts
from server.dialects.json_body import parse, parse_body
from server.errors import EmptyInput, InvalidRequest
from server.models import ModelTable, ServedModel
from server.pipeline import EmbedRequest
from server.request_headers import Wishes
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
    SIMILARITIES = "similarities"


class Parameters(msgspec.Struct, kw_only=True):
    """How texts become tokens."""

    truncate: bool | None = None  # None = as --auto-truncate says
    truncation_direction: str | None = None
    prompt_name: str | None = None


class EmbedAllBody(Parameters):
    """The body of POST /embed_all."""

    inputs: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=SCHEMA)]
    model: str | None = None


class EmbedBody(EmbedAllBody):
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
    request = _request(parse_body(_EMBED_ALL, body), wishes, models, max_items=max_items)
    return replace(request, outputs=OutputKind.TOKENS, normalize=False), Form.TOKEN_ROWS


def decode_similarity(body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int) -> tuple[EmbedRequest, Form]:
    """POST /similarity: the source sentence is the first of the request's texts."""
    return _similarity(parse_body(_SIMILARITY, body), wishes, models, max_items=max_items)


def decode_any(body: bytes, wishes: Wishes, models: ModelTable, *, max_items: int) -> tuple[EmbedRequest, Form]:
    """POST /: what is wanted shows in the form of `inputs`."""
    fields = parse_body(_ANY, body)
    if bytes(memoryview(fields.inputs)[:1]) == b"{":
        return _similarity(fields, wishes, models, max_items=max_items)
    return _embed(fields, wishes, models, max_items=max_items)


def _embed(fields: EmbedBody, wishes: Wishes, models: ModelTable, *, max_items: int) -> tuple[EmbedRequest, Form]:
    request = _request(fields, wishes, models, max_items=max_items)
    dimensions = read_dimensions(fields.dimensions, request.model.dimensions)
    form = Form.RAW_ROWS if wishes.raw_bytes else Form.ROWS
    return replace(request, dimensions=dimensions, normalize=fields.normalize is not False), form


def _request(fields: EmbedAllBody, wishes: Wishes, models: ModelTable, *, max_items: int) -> EmbedRequest:
    model = models.choose(fields.model)
    given = read_inputs(fields.inputs, "inputs", max_items=max_items)
    return EmbedRequest(
        model=model,
        texts=given.texts,
        token_ids=given.token_ids,
        prompt=read_prompt(fields.prompt_name, given, model),
        truncation=_truncation(fields, model),
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
        truncation=_truncation(parameters, model),
        normalize=True,
        request_class=wishes.request_class,
        deadline=wishes.deadline,
        field="inputs.sentences",
        first_field="inputs.source_sentence",
    )
    return request, Form.SIMILARITIES


def _truncation(parameters: Parameters, model: ServedModel) -> Truncation:
    wished = parameters.truncation_direction
    direction = Truncation.RIGHT if wished is None else _DIRECTIONS.get(wished)
    if direction is None:
        raise InvalidRequest("truncation_direction must be left or right", param="truncation_direction")
    is_on = model.truncation is not Truncation.NONE if parameters.truncate is None else parameters.truncate
    return direction if is_on else Truncation.NONE

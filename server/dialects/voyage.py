"""Voyage's route for the chunks of documents. Its other routes have paths of OpenAI's, and of rerank.

https://docs.voyageai.com/reference/contextualized-embeddings-api. The texts of an inner list are the chunks of one
document, which is computed as a whole: late chunking. A list of one text, as a query is, has the row that
/v1/embeddings gives it. Queries may also come as texts, without lists of their own.
"""

import re
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
import orjson

from server.dialects.answers import Answer
from server.dialects.fields.field import item_field
from server.dialects.fields.request import ModelField
from server.dialects.fields.rows import EveryRowFields, read_every_dimensions, read_every_form, read_normalize
from server.dialects.fields.texts import InputTypeField, PromptFields, check_gives_token_rows, read_prompts
from server.dialects.reading.inputs import check_num_items, num_strings
from server.dialects.reading.json_body import parse
from server.dialects.route import Call, Route, Stages
from server.dialects.row_answers import ROWS, Usage, headers, row_values, rows_alone
from server.requests.embeddings import embed_any
from server.requests.errors import EmptyInput, InvalidRequest
from server.requests.limits import in_steps
from server.requests.work import Chunking, Embedded, EmbedRequest
from tokenizer_pool.messages import Truncation

_TEXT_LIST: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
_SCHEMA: dict[str, Any] = {"type": "array", "items": {"anyOf": [_TEXT_LIST, {"type": "string"}]}}
_ARE_TEXTS = re.compile(rb'\[\s*"')
_NUMBERS_AN_ITEM = 64  # what writing an item costs beside its row, counted in plain numbers
_TEXTS = msgspec.json.Decoder(list[str])
_TEXT_LISTS = msgspec.json.Decoder(list[Annotated[list[str], msgspec.Meta(min_length=1)]])


class ContextualizedBody(ModelField, InputTypeField, EveryRowFields, kw_only=True):
    """The body of POST /v1/contextualizedembeddings."""

    inputs: Annotated[msgspec.Raw, item_field("documents, each a list of its chunks, or queries", _SCHEMA)]


def _decode(call: Call, fields: ContextualizedBody) -> EmbedRequest:
    model = call.choose(fields, with_prompt=True)
    has_lists = not _ARE_TEXTS.match(bytes(fields.inputs))
    if not has_lists and fields.input_type != "query":
        raise InvalidRequest(
            'inputs[0] must be a list: send a list of chunks for each document; texts alone are for input_type "query"',
            param="inputs[0]",
        )
    documents = _read_documents(fields.inputs, has_lists, max_items=call.max_items)
    sizes = list(map(len, documents))
    chunking = Chunking.NONE if max(sizes) == 1 else Chunking.DOCUMENTS
    if chunking is Chunking.DOCUMENTS:
        check_gives_token_rows(model, "inputs")
    call.set_form(read_every_form(fields))
    return EmbedRequest(
        **call.common(model),
        **read_prompts(PromptFields(input_type=fields.input_type), model, name=call.models.asked_name(fields.model)),
        items=list(chain.from_iterable(documents)),
        document_sizes=sizes if has_lists else (),
        chunking=chunking,
        truncation=Truncation.NONE,
        dimensions=read_every_dimensions(fields, model.dimensions),
        normalize=read_normalize(fields),
        field="inputs",
    )


def _read_documents(value: msgspec.Raw, has_lists: bool, *, max_items: int) -> list[list[str]]:
    """Lists of texts, or texts, each a list of its own then; counted before they are decoded. Raises InvalidRequest,
    EmptyInput and MalformedBody."""
    raw = bytes(value)
    if not raw.startswith(b"["):
        raise InvalidRequest("inputs must be a list of lists of texts", param="inputs")
    check_num_items(num_strings(raw), "inputs", max_items=max_items)
    documents = parse(_TEXT_LISTS, raw, "inputs") if has_lists else [[text] for text in parse(_TEXTS, raw, "inputs")]
    if not documents:
        raise EmptyInput("inputs must not be empty", param="inputs")
    check_num_items(sum(map(len, documents)), "inputs", max_items=max_items)
    for at, texts in enumerate(documents):
        if "" in texts:
            param = f"inputs[{at}][{texts.index('')}]" if has_lists else f"inputs[{at}]"
            raise EmptyInput(f"{param} must not be an empty string", param=param)
    return documents


async def _encode(call: Call, request: EmbedRequest, embedded: Embedded) -> Answer:
    """A list for each document. Written into one buffer, because it can be a hundred megabytes."""
    form, ranges = call.form, request.ranges
    if form.has_rows_alone:
        return await rows_alone(embedded, form, ranges)
    sizes = request.document_sizes or [1] * len(embedded.rows)
    places = ((at, index, index + 1 == size) for at, size in enumerate(sizes) for index in range(size))
    out = bytearray(b'{"object":"list","data":[')

    def write(part: slice) -> None:
        nonlocal out
        for value in row_values(embedded.rows[part], form, ranges):
            at, index, is_last = next(places)
            if not index:
                out += b'%b{"object":"list","index":%d,"data":[' % (b"," if at else b"", at)
            out += b'%b{"object":"embedding","index":%d,"embedding":%b}' % (b"," if index else b"", index, value)
            out += b"]}" if is_last else b""

    num_rows, width = embedded.rows.shape
    await in_steps(num_rows, max(width, _NUMBERS_AN_ITEM), write)
    usage = Usage(embedded.num_tokens, embedded.num_tokens, embedded.num_truncated)
    out += b'],"model":%b,"usage":%b}' % (orjson.dumps(request.model.name), msgspec.json.encode(usage))
    return Answer(200, headers(embedded, form, ranges), out)


_Base64 = Annotated[str, msgspec.Meta(extra_json_schema={"format": "byte"})]


class _ContextualizedChunk(msgspec.Struct):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | _Base64 | dict[str, list[float] | _Base64]  # a dict if encoding_format is a list


class _ContextualizedDocument(msgspec.Struct):
    object: Literal["list"]
    index: int
    data: list[_ContextualizedChunk]


class ContextualizedAnswer(msgspec.Struct):
    """The answer of POST /v1/contextualizedembeddings."""

    object: Literal["list"]
    data: list[_ContextualizedDocument]
    model: str
    usage: Usage


ROUTES = (
    Route(
        path="/v1/contextualizedembeddings",
        stages=Stages(_decode, embed_any, _encode),
        summary="Embed the chunks of documents, each with its document around it, with Voyage's API",
        body=ContextualizedBody,
        example={"inputs": [["It leaves", "at 7."]]},
        answers=(ContextualizedAnswer,),
        raw_answer=ROWS,
    ),
)

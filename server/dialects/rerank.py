"""The rerank routes: bodies and answers. The body's fields show which of five families of clients sends it, and each
family has its own shape of answers and errors.

`texts` is text-embeddings-inference's and Baseten's, `documents` Cohere's, Jina's, vLLM's and Infinity's, `documents`
with `top_k` or `truncation` Voyage's, `input` Mixedbread's; those with `property` are Weaviate's. Documents are texts,
objects with a text, or objects whose fields are joined. They are counted before they are decoded, as in
reading/inputs.py.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from server.dialects.answers import Answer, ErrorShape, openai_error, text_error
from server.dialects.fields.field import item_field, names_of, option
from server.dialects.fields.request import (
    ModelField,
    RankFields,
    read_instruction,
    read_raw_scores,
    read_top_n,
)
from server.dialects.fields.rows import read_one, read_score_form
from server.dialects.fields.texts import TRUNCATION, PairLengthFields, TruncationFields, read_cut, read_pair_lengths
from server.dialects.reading.inputs import TextObject, check_num_items, check_num_strings, num_strings, text_of
from server.dialects.reading.json_body import NOT_GIVEN, FieldsReader, given_members, is_given, parse
from server.dialects.route import Call, Route, Stages
from server.dialects.row_answers import ROWS, Usage, as_list, headers, numbers_as_json, rows_alone
from server.dialects.tei import tei_error, tei_error_for_all, timing_headers
from server.dialects.weaviate import WeaviateAnswer, weaviate_answer, weaviate_property_answer
from server.requests.errors import EmptyInput, InvalidRequest, RequestError
from server.requests.limits import in_slices
from server.requests.rerank import Ranked, RerankRequest, rank
from server.requests.work import Embedded
from wire.records import light_dataclass

DOCUMENT_LIST = {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}}
_MAX_RANK_FIELDS = 64

_TEXTS = msgspec.json.Decoder(list[str])
_DOCUMENTS = msgspec.json.Decoder(list[str | TextObject])
_OBJECTS = msgspec.json.Decoder(list[str | dict[str, msgspec.Raw]])
_VALUE = msgspec.json.Decoder(str | int | float | bool | None)
_TEXT_LIST = {"type": "array", "items": {"type": "string"}}
PROPERTY = "property"
_DOCUMENTS_A_SEARCH = 100  # for each so many documents Cohere bills another search


class Family(enum.Enum):
    """Clients that expect the same shape of answers and errors: the field of their documents, the shape of errors, and
    of a result in JSON what its score is called, its text, and its end."""

    TEI = "texts", tei_error, b"score", b',"text":%b'
    RESULTS = "documents", openai_error, b"relevance_score", b',"document":{"text":%b}'
    VOYAGE = "documents", openai_error, b"relevance_score", b',"document":%b'
    MIXEDBREAD = "input", openai_error, b"score", b',"input":%b', b',"object":"rank_result"}'
    WEAVIATE = "documents", text_error, b"score", b""  # see weaviate.py

    def __init__(self, field: str, error_shape: ErrorShape, score: bytes, text: bytes, end: bytes = b"}") -> None:
        self.field, self.error_shape = field, error_shape
        self.score, self.text, self.end = score, text, end


@dataclass(frozen=True, slots=True)
class Habits:
    """The defaults that clients of one path expect where their body does not say it."""

    family: Family  # whose errors they get
    repeats_documents: bool = False  # whether `results` have their documents unasked, as vLLM's and Jina's do
    is_also_voyages: bool = False  # whether Voyage's client may send a body without any field that is only its own
    version: int = 2  # of Cohere's API


@light_dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRequest(RerankRequest):
    """The texts to be ranked, and how the answer looks."""

    family: Family
    version: int  # of Cohere's API
    top_n: int | None  # only so many of the best; None = all
    has_texts: bool  # whether each result repeats its document
    has_documents_in_objects: bool  # whether `results` have {"text": …} instead of a text
    has_data: bool  # whether Voyage's `data` stands beside `results`
    has_texts_in_data: bool


_RankFields = option("the parts of a document that are ranked", by="Cohere, Mixedbread", neutral=([],))
_RETURNED = "whether results repeat their documents"


class RerankBody(TruncationFields, PairLengthFields, ModelField, RankFields, kw_only=True):
    """The body of POST /rerank, of all families. One of `texts`, `documents` and `input` is needed."""

    query: Annotated[
        str, item_field("what is looked for", is_list=False, may_be_empty_beside="texts")
    ]  # TEI's may be empty
    texts: Annotated[msgspec.Raw, item_field("what is ranked", _TEXT_LIST, may_have_empty=True)] = NOT_GIVEN
    documents: Annotated[msgspec.Raw, item_field("what is ranked", DOCUMENT_LIST, may_have_empty=True)] = NOT_GIVEN
    input: Annotated[msgspec.Raw, item_field("what is ranked", DOCUMENT_LIST, may_have_empty=True)] = NOT_GIVEN
    return_text: Annotated[bool | None, option(_RETURNED, by="TEI", neutral=(False,))] = None
    return_documents: Annotated[bool | None, option(_RETURNED, by="Cohere, Jina, Voyage", neutral=(False,))] = None
    return_input: Annotated[bool | None, option(_RETURNED, by="Mixedbread", neutral=(False,))] = None
    max_chunks_per_doc: Annotated[
        int | None, option("the chunks of a document that are ranked", by="Cohere", neutral=(1,), least=1)
    ] = None  # a document is one chunk here, which is never too many
    rank_fields: Annotated[Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_TEXT_LIST)], _RankFields] = NOT_GIVEN
    one_document: Annotated[str, item_field("what is ranked", is_list=False)] | None = msgspec.field(
        default=None, name=PROPERTY
    )  # Weaviate's, "" beside `documents`


_BODY = FieldsReader(RerankBody)
_LENGTHS = names_of(PairLengthFields)
_MARKS = ("texts", "documents", "input", "top_k", TRUNCATION, PROPERTY)


def _decode(call: Call, body: bytes, *, habits: Habits) -> FamilyRequest:
    """Errors get the shape of the body's family, if it shows one."""
    family = family_of(body)
    if family is not None:
        call.error_shape = family.error_shape
    fields = _BODY.read(body)
    if family is None:
        raise InvalidRequest("documents is missing (or texts, or input)", param="documents")
    _check_is_one_kind(fields)
    model = call.choose(fields)
    field = family.field
    if family is Family.WEAVIATE and not is_given(fields.documents):
        if not fields.one_document:
            raise EmptyInput("documents must not be empty, or property must have a text", param="documents")
        field, documents = PROPERTY, [fields.one_document]
    else:
        documents = _read_documents(fields, field, max_items=call.max_items)
    if not fields.query and (family is not Family.TEI or "" in documents):  # TEI refuses pairs without any text
        raise EmptyInput("query must not be an empty string", param="query")
    call.set_form(read_score_form(fields))
    asks_for_texts = has_texts = read_one(
        return_text=fields.return_text, return_documents=fields.return_documents, return_input=fields.return_input
    )
    if has_texts is None and family is Family.RESULTS:
        has_texts = habits.repeats_documents and fields.raw_scores is None
    instruction, instruction_field = read_instruction(fields)
    _check_max_chunks(fields)
    others = fields.top_n, fields.raw_scores, fields.max_chunks_per_doc, *(getattr(fields, name) for name in _LENGTHS)
    return FamilyRequest(
        **call.common(model),
        queries=[fields.query],
        documents=documents,
        raw_scores=read_raw_scores(fields),
        is_bounded=family is not Family.WEAVIATE and (family is not Family.RESULTS or fields.use_activation is None),
        instruction=instruction,
        **read_cut(fields, model),
        **read_pair_lengths(fields, model),
        field=field,
        instruction_field=instruction_field,
        family=family,
        version=habits.version,
        top_n=read_top_n(fields),
        has_texts=bool(has_texts),
        # Infinity's client always sends raw_scores, and wants texts
        has_documents_in_objects=call.has_documents_in_objects and fields.raw_scores is None,
        has_data=family is Family.RESULTS and habits.is_also_voyages and set(others) == {None},
        has_texts_in_data=asks_for_texts is True,
    )


def family_of(body: bytes) -> Family | None:
    """The family of a body that may be wrong; None if no field shows it."""
    try:
        given = given_members(body, _MARKS).keys()
    except RequestError:
        return None
    if "texts" in given:
        return Family.TEI
    if PROPERTY in given:
        return Family.WEAVIATE
    if "documents" in given:
        return Family.RESULTS if given.isdisjoint(("top_k", TRUNCATION)) else Family.VOYAGE
    return Family.MIXEDBREAD if "input" in given else None


def _check_is_one_kind(fields: RerankBody) -> None:
    """Raises InvalidRequest for documents of two families."""
    given = [name for name in ("texts", "documents", "input") if is_given(getattr(fields, name))]
    if fields.one_document:
        given.append(PROPERTY)
    if len(given) > 1:
        raise InvalidRequest(f"{given[1]} can't be given with {given[0]}", param=given[1])


def _check_max_chunks(fields: RerankBody) -> None:
    """Raises InvalidRequest."""
    if fields.max_chunks_per_doc is not None and fields.max_chunks_per_doc < 1:
        raise InvalidRequest("max_chunks_per_doc must be at least 1", param="max_chunks_per_doc")


def _read_documents(fields: RerankBody, field: str, *, max_items: int) -> list[str]:
    """The documents, of which any may be empty. Of an object its `text` is ranked, or what `rank_fields` names, each on
    a line of its own; TEI has texts alone.

    Without `rank_fields` an image or another part beside the text is refused. A `url` tells where a text is from.
    Raises InvalidRequest, EmptyInput and MalformedBody.
    """
    raw = bytes(getattr(fields, field))
    if not raw.startswith(b"["):
        raise InvalidRequest(f"{field} must be a list of texts", param=field)
    check_num_strings(raw, field, max_items=max_items)
    if field == Family.TEI.field:
        documents = parse(_TEXTS, raw, field)
    elif names := _read_rank_fields(fields.rank_fields):
        documents = [
            item if isinstance(item, str) else _joined(item, names, f"{field}[{index}]")
            for index, item in enumerate(parse(_OBJECTS, raw, field))
        ]
    else:
        documents = [
            item if isinstance(item, str) else text_of(item, f"{field}[{index}]")
            for index, item in enumerate(parse(_DOCUMENTS, raw, field))
        ]
    if not documents:
        raise EmptyInput(f"{field} must not be empty", param=field)
    check_num_items(len(documents), field, max_items=max_items)
    return documents


def _read_rank_fields(value: msgspec.Raw) -> list[str]:
    """The fields to rank by, each once; none if the text is meant."""
    if not is_given(value):
        return []
    raw = bytes(value)
    names = parse(_TEXTS, raw, "rank_fields") if num_strings(raw) <= _MAX_RANK_FIELDS else None
    if names is None or len(names) > _MAX_RANK_FIELDS:
        raise InvalidRequest(f"rank_fields must be at most {_MAX_RANK_FIELDS} names", param="rank_fields")
    return list(dict.fromkeys(names))


def _joined(document: dict[str, msgspec.Raw], names: Sequence[str], param: str) -> str:
    """Fields that are missing or null are left out."""
    lines = []
    for name in names:
        if name in document:
            given = parse(_VALUE, document[name], param)
            if given is not None:
                lines.append(given if isinstance(given, str) else bytes(document[name]).decode())
    if not lines:
        raise InvalidRequest(f"{param} has none of rank_fields", param=param)
    return "\n".join(lines)


_PATHS = {
    "/rerank": Habits(Family.TEI, repeats_documents=True),
    "/v1/rerank": Habits(Family.RESULTS, repeats_documents=True, is_also_voyages=True, version=1),
    "/v2/rerank": Habits(Family.RESULTS),
    "/v1/reranking": Habits(Family.MIXEDBREAD),
}


async def _encode(call: Call, request: FamilyRequest, ranked: Ranked) -> Answer:
    """Raw scores in the request's order, with the shape documents,1; or results with the best first."""
    scores = Embedded(ranked.scores[:, None], ranked.num_tokens, ranked.truncated)
    timing = timing_headers(call.trace) if request.family is Family.TEI else []
    if call.form.has_rows_alone:
        return await rows_alone(scores, call.form, beside=timing)
    return Answer(200, [*headers(scores), *timing], await _in_json(request, ranked, request_id=call.trace.request_id))


async def _in_json(request: FamilyRequest, ranked: Ranked, *, request_id: str) -> bytes:
    if request.family is Family.WEAVIATE:
        if request.field == PROPERTY:
            return weaviate_property_answer(request.queries[0], request.documents[0], ranked)
        return await weaviate_answer(request.queries[0], request.documents, ranked, request.top_n)
    chosen = ranked.best_first()[: request.top_n]
    scores, family = ranked.scores[chosen], request.family
    if family is Family.RESULTS and not request.has_documents_in_objects:
        family = Family.VOYAGE
    documents = request.documents if request.has_texts else None
    results = await _results(scores, chosen, family, documents)
    name, num_tokens = orjson.dumps(request.model.name), ranked.num_tokens
    usage = msgspec.json.encode(Usage(num_tokens, num_tokens, ranked.num_truncated))
    match request.family:
        case Family.TEI:
            return results
        case Family.VOYAGE:
            return b'{"object":"list","data":%b,"model":%b,"usage":%b}' % (results, name, usage)
        case Family.MIXEDBREAD:
            asked = orjson.dumps({"top_k": len(chosen), "return_input": request.has_texts})[1:]
            return b'{"object":"list","data":%b,"model":%b,"usage":%b,%b' % (results, name, usage, asked)
        case _:
            data = b""
            if request.has_data:
                documents = request.documents if request.has_texts_in_data else None
                data = b',"data":' + await _results(scores, chosen, Family.VOYAGE, documents)
            meta = (
                b'{"api_version":{"version":"%d"},"billed_units":{"search_units":%d},"tokens":{"input_tokens":%d}}'
                % (request.version, -(-len(ranked.scores) // _DOCUMENTS_A_SEARCH), num_tokens)
            )
            return b'{"id":"rerank-%b","object":"rerank","model":%b,"results":%b%b,"usage":%b,"meta":%b}' % (
                request_id.encode(),
                name,
                results,
                data,
                usage,
                meta,
            )


async def _results(
    scores: NDArray[np.float32], indices: NDArray[np.intp], family: Family, documents: Sequence[str] | None
) -> bytes:
    """A list of them, with their documents or without any. In slices, so that other requests run in between."""
    numbers, written = numbers_as_json(scores)[1:-1].split(b","), []
    async for index, number in in_slices(zip(indices.tolist(), numbers, strict=True)):
        text = b"" if documents is None else family.text % msgspec.json.encode(documents[index])
        written.append(b'{"index":%d,"%b":%b%b%b' % (index, family.score, number, text, family.end))
    return as_list(written)


class _Document(msgspec.Struct):
    text: str


class _TeiResult(msgspec.Struct):
    index: int
    score: float
    text: str | msgspec.UnsetType = msgspec.UNSET


class _Result(msgspec.Struct):
    index: int
    relevance_score: float
    document: _Document | str | msgspec.UnsetType = msgspec.UNSET


class _VoyageResult(msgspec.Struct):
    index: int
    relevance_score: float
    document: str | msgspec.UnsetType = msgspec.UNSET


class _MixedbreadResult(msgspec.Struct):
    index: int
    score: float
    object: Literal["rank_result"]
    input: str | msgspec.UnsetType = msgspec.UNSET


class RerankAnswer(msgspec.Struct):
    """The answer to `documents`."""

    id: str
    object: Literal["rerank"]
    model: str
    results: list[_Result]
    usage: Usage
    meta: dict[str, Any]
    data: list[_VoyageResult] | msgspec.UnsetType = msgspec.UNSET


class VoyageAnswer(msgspec.Struct):
    """The answer to `documents` with `top_k` or `truncation`."""

    object: Literal["list"]
    data: list[_VoyageResult]
    model: str
    usage: Usage


class MixedbreadAnswer(msgspec.Struct):
    """The answer to `input`."""

    object: Literal["list"]
    data: list[_MixedbreadResult]
    model: str
    usage: Usage
    top_k: int
    return_input: bool


ROUTES = tuple(
    Route(
        path=path,
        stages=Stages(partial(_decode, habits=habits), rank, _encode),
        read=bytes,
        error_shape=tei_error_for_all if habits.family is Family.TEI else habits.family.error_shape,
        other_error_shapes=tuple(family.error_shape for family in Family),
        summary="Rerank documents with the API of TEI, Cohere, Jina, vLLM, Voyage, Mixedbread or Weaviate",
        body=RerankBody,
        one_of=(("texts",), ("documents",), ("input",), ("one_document",)),
        example={"query": "When does the boat go?", habits.family.field: ["The ferry leaves at seven."]},
        answers=(list[_TeiResult], RerankAnswer, VoyageAnswer, MixedbreadAnswer, WeaviateAnswer),
        raw_answer=ROWS,
    )
    for path, habits in _PATHS.items()
)

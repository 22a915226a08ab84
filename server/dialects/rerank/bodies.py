"""The bodies of the rerank routes. Their fields show which of five families of clients sends them.

`texts` is text-embeddings-inference's and Baseten's, `documents` Cohere's, Jina's, vLLM's and Infinity's, `documents`
with `top_k` or `truncation` Voyage's, `input` Mixedbread's; those with `property` are Weaviate's.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from server.dialects.reading.alternatives import forms_of
from server.dialects.reading.json_body import parse
from server.dialects.reading.known_fields import BodyReader
from server.dialects.reading.synonyms import read_one
from server.dialects.reading.truncation import TruncationFields, read_max_tokens, read_truncation
from server.dialects.rerank.documents import DOCUMENT_LIST, read_documents, read_texts
from server.dialects.route import Call, ErrorShape
from server.dialects.tei.shared import tei_error
from server.dialects.writing.forms import FLOATS, RAW_FLOATS, RowForm
from server.dialects.writing.openai_shapes import openai_error
from server.dialects.writing.text_errors import text_error
from server.requests.errors import EmptyInput, InvalidRequest, RequestError
from server.requests.models import ServedModel
from server.requests.rerank import RerankRequest

_FORMS = {None: FLOATS, "float": FLOATS, "bytes": RAW_FLOATS}
_TEXT_LIST = {"type": "array", "items": {"type": "string"}}


class Family(enum.Enum):
    """Clients that expect the same shape of answers and errors."""

    TEI = "tei"
    RESULTS = "results"
    VOYAGE = "voyage"
    MIXEDBREAD = "mixedbread"
    WEAVIATE = "weaviate"


@dataclass(frozen=True, slots=True)
class Habits:
    """What clients of one path expect where their body does not say it."""

    family: Family  # whose errors they get
    repeats_documents: bool = False  # whether `results` have their documents unasked, as vLLM's and Jina's do
    is_also_voyages: bool = False  # whether Voyage's client may send a body without any field that is only its own
    version: int = 2  # of Cohere's API


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRequest(RerankRequest):
    """What is to be ranked, and how the answer looks."""

    family: Family
    version: int  # of Cohere's API
    top_n: int | None  # only so many of the best; None = all
    has_texts: bool  # whether each result repeats its document
    has_texts_in_objects: bool  # whether `results` have {"text": …} instead of a text
    has_data: bool  # whether Voyage's `data` stands beside `results`
    has_texts_in_data: bool


def _raw() -> msgspec.Raw:
    return msgspec.Raw(b"")


class RerankBody(TruncationFields, kw_only=True):
    """The body of POST /rerank, of all families. One of `texts`, `documents` and `input` is needed."""

    query: str
    texts: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_TEXT_LIST)] = msgspec.field(default_factory=_raw)
    documents: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=DOCUMENT_LIST)] = msgspec.field(
        default_factory=_raw
    )
    input: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=DOCUMENT_LIST)] = msgspec.field(default_factory=_raw)
    model: str | None = None
    top_n: int | None = None  # 0 = all, as vLLM has it
    top_k: int | None = None
    raw_scores: bool | None = None
    use_activation: bool | None = None  # vLLM's; the opposite of raw_scores
    return_text: bool | None = None
    return_documents: bool | None = None
    return_input: bool | None = None
    instruction: str | None = None
    instruct: str | None = None  # SGLang's name for it
    max_tokens_per_doc: int | None = None  # 0 = all, as vLLM has it
    max_chunks_per_doc: int | None = None  # a document is one chunk here, which is never too many
    rank_fields: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_TEXT_LIST)] = msgspec.field(
        default_factory=_raw
    )
    encoding_format: str | None = None
    one_document: str | None = msgspec.field(default=None, name="property")  # Weaviate's, "" beside `documents`


class _Marks(msgspec.Struct):
    """The fields that show the family, with any value."""

    texts: msgspec.Raw = msgspec.field(default_factory=_raw)
    documents: msgspec.Raw = msgspec.field(default_factory=_raw)
    input: msgspec.Raw = msgspec.field(default_factory=_raw)
    top_k: msgspec.Raw = msgspec.field(default_factory=_raw)
    truncation: msgspec.Raw = msgspec.field(default_factory=_raw)
    one_document: msgspec.Raw = msgspec.field(default_factory=_raw, name="property")


_BODY = BodyReader(RerankBody)
BODIES = forms_of(RerankBody, ["texts"], ["documents"], ["input"], ["one_document"])
_MARKS = msgspec.json.Decoder(_Marks)

ERROR_SHAPES: dict[Family, ErrorShape] = {
    Family.TEI: tei_error,
    Family.RESULTS: openai_error,
    Family.VOYAGE: openai_error,
    Family.MIXEDBREAD: openai_error,
    Family.WEAVIATE: text_error,
}
FIELDS = {
    Family.TEI: "texts",
    Family.RESULTS: "documents",
    Family.VOYAGE: "documents",
    Family.MIXEDBREAD: "input",
    Family.WEAVIATE: "documents",
}
PROPERTY = "property"


def decode(call: Call, body: bytes, *, habits: Habits) -> FamilyRequest:
    """Errors get the shape of the body's family, if it shows one. Raises RequestError, naming the field or index."""
    try:
        request = _decode(call, body, habits)
    except RequestError:
        family = family_of(body)
        if family is not None:
            call.error_shape = ERROR_SHAPES[family]
        raise
    call.error_shape = ERROR_SHAPES[request.family]
    return request


def _decode(call: Call, body: bytes, habits: Habits) -> FamilyRequest:
    fields = _BODY.read(body)
    is_voyage = fields.top_k is not None or fields.truncation is not None
    family = _family(fields, is_voyage=is_voyage, is_weaviate=fields.one_document is not None)
    if family is None:
        raise InvalidRequest("documents is missing (or texts, or input)", param="documents")
    _check_is_one_kind(fields)
    model = call.models.choose(fields.model)
    field, max_items = FIELDS[family], call.max_items
    if family is Family.WEAVIATE and not _is_given(fields.documents):
        field, documents = PROPERTY, _read_property(fields)
    elif family is Family.TEI:
        documents = read_texts(fields.texts, field, max_items=max_items)
    else:
        items = fields.documents if field == "documents" else fields.input
        documents = read_documents(items, field, rank_fields=fields.rank_fields, max_items=max_items)
    if not fields.query and (family is not Family.TEI or "" in documents):  # TEI refuses pairs without any text
        raise EmptyInput("query must not be an empty string", param="query")
    call.set_form(_read_form(fields))
    asks_for_texts = has_texts = read_one(
        return_text=fields.return_text, return_documents=fields.return_documents, return_input=fields.return_input
    )
    if has_texts is None and family is Family.RESULTS:
        has_texts = habits.repeats_documents and fields.raw_scores is None
    is_ambiguous = fields.top_n is fields.raw_scores is fields.max_tokens_per_doc is fields.max_chunks_per_doc is None
    return FamilyRequest(
        model=model,
        queries=[fields.query],
        documents=documents,
        raw_scores=_read_raw_scores(fields),
        is_bounded=family is not Family.WEAVIATE and (family is not Family.RESULTS or fields.use_activation is None),
        instruction=read_one(instruction=fields.instruction, instruct=fields.instruct),
        truncation=read_truncation(fields, model),
        max_tokens=read_max_tokens(fields, model),
        max_document_tokens=_read_max_document_tokens(fields, model),
        request_class=call.options.request_class,
        deadline=call.options.deadline,
        documents_field=field,
        instruction_field="instruct" if fields.instruction is None else "instruction",
        family=family,
        version=habits.version,
        top_n=_read_top_n(fields),
        has_texts=bool(has_texts),
        # Infinity's client always sends raw_scores, and wants texts
        has_texts_in_objects=call.has_documents_in_objects and fields.raw_scores is None,
        has_data=family is Family.RESULTS and habits.is_also_voyages and is_ambiguous,
        has_texts_in_data=asks_for_texts is True,
    )


def _read_raw_scores(fields: RerankBody) -> bool:
    """Raises InvalidRequest if the two names of the option contradict each other."""
    if fields.raw_scores is not None and fields.raw_scores is fields.use_activation:
        raise InvalidRequest("raw_scores is the opposite of use_activation; give one of them", param="raw_scores")
    return bool(fields.raw_scores) or fields.use_activation is False


def family_of(body: bytes) -> Family | None:
    """Of a body that may be wrong; None if no field shows it."""
    try:
        marks = parse(_MARKS, body)
    except RequestError:
        return None
    is_voyage = _is_given(marks.top_k) or _is_given(marks.truncation)
    return _family(marks, is_voyage=is_voyage, is_weaviate=_is_given(marks.one_document))


def _family(fields: RerankBody | _Marks, *, is_voyage: bool, is_weaviate: bool) -> Family | None:
    if _is_given(fields.texts):
        return Family.TEI
    if is_weaviate:
        return Family.WEAVIATE
    if _is_given(fields.documents):
        return Family.VOYAGE if is_voyage else Family.RESULTS
    return Family.MIXEDBREAD if _is_given(fields.input) else None


def _is_given(value: msgspec.Raw) -> bool:
    return len(memoryview(value)) > 0 and bytes(memoryview(value)[:5]) != b"null"


def _check_is_one_kind(fields: RerankBody) -> None:
    """Raises InvalidRequest for documents of two families."""
    given = [name for name in ("texts", "documents", "input") if _is_given(getattr(fields, name))]
    if fields.one_document:
        given.append(PROPERTY)
    if len(given) > 1:
        raise InvalidRequest(f"{given[1]} can't be given with {given[0]}", param=given[1])


def _read_property(fields: RerankBody) -> Sequence[str]:
    """Raises EmptyInput."""
    if not fields.one_document:
        raise EmptyInput("documents must not be empty, or property must have a text", param="documents")
    return [fields.one_document]


def _read_max_document_tokens(fields: RerankBody, model: ServedModel) -> int | None:
    """Of a document's text; None if that may have as many as the model takes. Raises InvalidRequest."""
    for name, number, least in (
        ("max_tokens_per_doc", fields.max_tokens_per_doc, 0),
        ("max_chunks_per_doc", fields.max_chunks_per_doc, 1),
    ):
        if number is not None and number < least:
            raise InvalidRequest(f"{name} must be at least {least}", param=name)
    limit = fields.max_tokens_per_doc or model.max_seqlen
    return limit if limit < model.max_seqlen else None


def _read_form(fields: RerankBody) -> RowForm:
    """Raises InvalidRequest."""
    if fields.encoding_format not in _FORMS:
        raise InvalidRequest("encoding_format must be float or bytes", param="encoding_format")
    return _FORMS[fields.encoding_format]


def _read_top_n(fields: RerankBody) -> int | None:
    """Raises InvalidRequest."""
    for name, number in (("top_n", fields.top_n), ("top_k", fields.top_k)):
        if number is not None and number < 0:
            raise InvalidRequest(f"{name} must not be negative", param=name)
    return read_one(top_n=fields.top_n or None, top_k=fields.top_k or None)

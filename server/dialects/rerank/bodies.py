"""The bodies of the rerank routes. Their fields show which of four families of clients sends them.

`texts` is text-embeddings-inference's and Baseten's, `documents` Cohere's, Jina's, vLLM's and Infinity's, `documents`
with `top_k` or `truncation` Voyage's, `input` Mixedbread's.
"""

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from server.dialects.reading.inputs import check_num_items
from server.dialects.reading.json_body import parse
from server.dialects.reading.known_fields import BodyReader
from server.dialects.route import Call, ErrorShape
from server.dialects.tei.shared import Truncating, read_truncation, tei_error
from server.dialects.writing.forms import FLOATS, Encoding, RowForm
from server.dialects.writing.openai_shapes import openai_error
from server.requests.errors import EmptyInput, InvalidRequest, RequestError
from server.requests.models import ServedModel
from server.requests.rerank import RerankRequest
from tokenizer_pool.messages import Truncation

_STRINGS_AN_ITEM = 32  # that one document's object may have; for each 32 more it counts as another item
_FORMS = {None: FLOATS, "float": FLOATS, "bytes": RowForm(Encoding.BYTES_ONLY)}
_RANKED_BY_TEXT = re.compile(rb'(null|\[\s*("text"\s*)?\])?')
_TEXT_LIST = {"type": "array", "items": {"type": "string"}}
_RANK_FIELDS = {"type": "array", "items": {"const": "text"}}
_DOCUMENT_LIST = {
    "type": "array",
    "items": {
        "anyOf": [
            {"type": "string"},
            {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        ]
    },
}


class Family(enum.Enum):
    """Clients that expect the same shape of answers and errors."""

    TEI = "tei"
    RESULTS = "results"
    VOYAGE = "voyage"
    MIXEDBREAD = "mixedbread"


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRequest(RerankRequest):
    """What is to be ranked, and how the answer looks."""

    family: Family
    top_n: int | None  # only so many of the best; None = all
    has_texts: bool  # whether each result repeats its document


def _raw() -> msgspec.Raw:
    return msgspec.Raw(b"")


class RerankBody(Truncating, kw_only=True):
    """The body of POST /rerank, of all families. One of `texts`, `documents` and `input` is needed."""

    query: str
    texts: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_TEXT_LIST)] = msgspec.field(default_factory=_raw)
    documents: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_DOCUMENT_LIST)] = msgspec.field(
        default_factory=_raw
    )
    input: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_DOCUMENT_LIST)] = msgspec.field(default_factory=_raw)
    model: str | None = None
    top_n: int | None = None  # 0 = all, as vLLM has it
    top_k: int | None = None
    raw_scores: bool | None = None
    use_activation: bool | None = None  # vLLM's; the opposite of raw_scores
    return_text: bool | None = None
    return_documents: bool | None = None
    return_input: bool | None = None
    truncation: bool | None = None
    instruction: str | None = None
    instruct: str | None = None  # SGLang's name for it
    max_tokens_per_doc: int | None = None
    rank_fields: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_RANK_FIELDS)] = msgspec.field(
        default_factory=_raw
    )
    encoding_format: str | None = None


class _Document(msgspec.Struct):
    text: str


class _Marks(msgspec.Struct):
    """The fields that show the family, with any value."""

    texts: msgspec.Raw = msgspec.field(default_factory=_raw)
    documents: msgspec.Raw = msgspec.field(default_factory=_raw)
    input: msgspec.Raw = msgspec.field(default_factory=_raw)
    top_k: msgspec.Raw = msgspec.field(default_factory=_raw)
    truncation: msgspec.Raw = msgspec.field(default_factory=_raw)


_BODY = BodyReader(RerankBody)
_MARKS = msgspec.json.Decoder(_Marks)
_TEXTS = msgspec.json.Decoder(list[str])
_DOCUMENTS = msgspec.json.Decoder(list[str | _Document])

ERROR_SHAPES: dict[Family, ErrorShape] = {
    Family.TEI: tei_error,
    Family.RESULTS: openai_error,
    Family.VOYAGE: openai_error,
    Family.MIXEDBREAD: openai_error,
}
FIELDS = {Family.TEI: "texts", Family.RESULTS: "documents", Family.VOYAGE: "documents", Family.MIXEDBREAD: "input"}


def decode(call: Call, body: bytes) -> FamilyRequest:
    """Errors get the shape of the body's family, if it shows one. Raises RequestError, naming the field or index."""
    try:
        request = _decode(call, body)
    except RequestError:
        family = family_of(body)
        if family is not None:
            call.error_shape = ERROR_SHAPES[family]
        raise
    call.error_shape = ERROR_SHAPES[request.family]
    return request


def _decode(call: Call, body: bytes) -> FamilyRequest:
    fields = _BODY.read(body)
    family = _family(fields, is_voyage=fields.top_k is not None or fields.truncation is not None)
    if family is None:
        raise InvalidRequest("documents is missing (or texts, or input)", param="documents")
    model = call.models.choose(fields.model)
    if not fields.query:
        raise EmptyInput("query must not be an empty string", param="query")
    _check_documents_fit(fields, model)
    documents = _read_documents(fields, family, max_items=call.max_items)
    truncation = _read_truncation(fields, model)
    call.set_form(_read_form(fields))
    wants_texts = {Family.TEI: fields.return_text, Family.MIXEDBREAD: fields.return_input}
    return FamilyRequest(
        model=model,
        query=fields.query,
        documents=documents,
        raw_scores=bool(fields.raw_scores) or fields.use_activation is False,
        instruction=fields.instruct if fields.instruction is None else fields.instruction,
        truncation=truncation,
        request_class=call.options.request_class,
        deadline=call.options.deadline,
        documents_field=FIELDS[family],
        instruction_field="instruct" if fields.instruction is None else "instruction",
        family=family,
        top_n=_read_top_n(fields),
        has_texts=bool(wants_texts.get(family, fields.return_documents)),
    )


def family_of(body: bytes) -> Family | None:
    """Of a body that may be wrong; None if no field shows it."""
    try:
        marks = parse(_MARKS, body)
    except RequestError:
        return None
    return _family(marks, is_voyage=_is_given(marks.top_k) or _is_given(marks.truncation))


def _family(fields: RerankBody | _Marks, *, is_voyage: bool) -> Family | None:
    if _is_given(fields.texts):
        return Family.TEI
    if _is_given(fields.documents):
        return Family.VOYAGE if is_voyage else Family.RESULTS
    return Family.MIXEDBREAD if _is_given(fields.input) else None


def _is_given(value: msgspec.Raw) -> bool:
    return len(memoryview(value)) > 0 and bytes(memoryview(value)[:5]) != b"null"


def _read_documents(fields: RerankBody, family: Family, *, max_items: int) -> Sequence[str]:
    """Counts the items before it decodes them, as inputs.py does for all lists."""
    field = FIELDS[family]
    raw = bytes(getattr(fields, field))
    if not raw.startswith(b"["):
        raise InvalidRequest(f"{field} must be a list of texts", param=field)
    num_strings = (raw.count(b'"') - raw.count(b'\\"')) // 2
    check_num_items(-(-num_strings // _STRINGS_AN_ITEM), field, max_items=max_items)
    if family is Family.TEI:
        documents = parse(_TEXTS, raw, field)
    else:
        documents = [item if isinstance(item, str) else item.text for item in parse(_DOCUMENTS, raw, field)]
    if not documents:
        raise EmptyInput(f"{field} must not be empty", param=field)
    check_num_items(len(documents), field, max_items=max_items)
    if not all(documents):
        param = f"{field}[{documents.index('')}]"
        raise EmptyInput(f"{param} must not be an empty string", param=param)
    return documents


def _check_documents_fit(fields: RerankBody, model: ServedModel) -> None:
    """Raises InvalidRequest for what the server does not do with documents."""
    if not _RANKED_BY_TEXT.fullmatch(bytes(fields.rank_fields)):
        raise InvalidRequest('rank_fields must be ["text"]: only the text of a document is ranked', param="rank_fields")
    if fields.max_tokens_per_doc is not None and fields.max_tokens_per_doc < model.max_seqlen:
        raise InvalidRequest(
            f"max_tokens_per_doc must be at least {model.max_seqlen}: documents are cut to what the model takes",
            param="max_tokens_per_doc",
        )


def _read_truncation(fields: RerankBody, model: ServedModel) -> Truncation:
    """Raises InvalidRequest."""
    truncate = fields.truncation if fields.truncate is None else fields.truncate
    return read_truncation(Truncating(truncate=truncate, truncation_direction=fields.truncation_direction), model)


def _read_form(fields: RerankBody) -> RowForm:
    """Raises InvalidRequest."""
    if fields.encoding_format not in _FORMS:
        raise InvalidRequest("encoding_format must be float or bytes", param="encoding_format")
    return _FORMS[fields.encoding_format]


def _read_top_n(fields: RerankBody) -> int | None:
    """Raises InvalidRequest."""
    name, number = ("top_n", fields.top_n) if fields.top_k is None else ("top_k", fields.top_k)
    if number is not None and number < 0:
        raise InvalidRequest(f"{name} must not be negative", param=name)
    return number or None

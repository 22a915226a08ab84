"""The answers of the rerank routes: scores in the shapes of five families of clients, and the table of routes."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from server.dialects.rerank.bodies import (
    BODIES,
    ERROR_SHAPES,
    FIELDS,
    PROPERTY,
    Family,
    FamilyRequest,
    Habits,
    decode,
)
from server.dialects.rerank.weaviate import WeaviateAnswer, weaviate_answer, weaviate_property_answer
from server.dialects.route import Answer, Call, Route
from server.dialects.tei.shared import tei_error_for_all, timing_headers
from server.dialects.writing.forms import numbers_as_json
from server.dialects.writing.openai_shapes import Usage
from server.dialects.writing.rows import ROWS, as_list, headers, rows_alone
from server.requests.rerank import Ranked, rank
from server.requests.time_slices import TimeSlice
from server.requests.work import Embedded

_PATHS = {
    "/rerank": Habits(Family.TEI, repeats_documents=True),
    "/v1/rerank": Habits(Family.RESULTS, repeats_documents=True, is_also_voyages=True, version=1),
    "/v2/rerank": Habits(Family.RESULTS),
    "/v1/reranking": Habits(Family.MIXEDBREAD),
}
_DOCUMENTS_A_SEARCH = 100  # for each so many documents Cohere bills another search


@dataclass(frozen=True, slots=True)
class _Form:
    """Of one result, in JSON; `%b` is its text, and without `text` it has none."""

    score: bytes  # what its score is called
    text: bytes
    end: bytes = b"}"


_FORMS = {
    Family.TEI: _Form(b"score", b',"text":%b'),
    Family.RESULTS: _Form(b"relevance_score", b',"document":{"text":%b}'),
    Family.VOYAGE: _Form(b"relevance_score", b',"document":%b'),
    Family.MIXEDBREAD: _Form(b"score", b',"input":%b', b',"object":"rank_result"}'),
}
_WITHOUT_TEXT = replace(_FORMS[Family.VOYAGE], text=b"")


async def encode(call: Call, request: FamilyRequest, ranked: Ranked) -> Answer:
    """Raw scores in the request's order, with the shape documents,1; or results with the best first."""
    scores = Embedded(ranked.scores[:, None], ranked.num_tokens, ranked.truncated)
    timing = timing_headers(call.trace) if request.family is Family.TEI else []
    if call.form and call.form.has_rows_alone:
        return await rows_alone(scores, call.form, beside=timing)
    return Answer(200, [*headers(scores), *timing], await _in_json(request, ranked, request_id=call.trace.request_id))


async def _in_json(request: FamilyRequest, ranked: Ranked, *, request_id: str) -> bytes:
    if request.family is Family.WEAVIATE:
        if request.documents_field == PROPERTY:
            return weaviate_property_answer(request.queries[0], request.documents[0], ranked)
        return await weaviate_answer(request.queries[0], request.documents, ranked, request.top_n)
    chosen = ranked.best_first()[: request.top_n]
    results = await _results(ranked.scores[chosen], chosen, request, _form_of(request))
    name, num_tokens = orjson.dumps(request.model.name), ranked.num_tokens
    usage = b'{"prompt_tokens":%d,"total_tokens":%d,"truncated_inputs":%d}' % (
        num_tokens,
        num_tokens,
        ranked.num_truncated,
    )
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
                form = _FORMS[Family.VOYAGE] if request.has_texts_in_data else _WITHOUT_TEXT
                data = b',"data":' + await _results(ranked.scores[chosen], chosen, request, form)
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


def _form_of(request: FamilyRequest) -> _Form:
    if request.has_texts and request.family is Family.RESULTS and not request.has_texts_in_objects:
        return _FORMS[Family.VOYAGE]
    return _FORMS[request.family] if request.has_texts else replace(_FORMS[request.family], text=b"")


async def _results(
    scores: NDArray[np.float32], indices: NDArray[np.intp], request: FamilyRequest, form: _Form
) -> bytes:
    """A list of them. In slices, so that other requests run in between."""
    time_slice = TimeSlice()
    numbers = numbers_as_json(scores)[1:-1].split(b",")
    written = []
    for index, score in zip(indices.tolist(), numbers, strict=True):
        text = form.text % msgspec.json.encode(request.documents[index]) if form.text else b""
        written.append(b'{"index":%d,"%b":%b%b%b' % (index, form.score, score, text, form.end))
        await time_slice.end_if_over()
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
        decode=partial(decode, habits=habits),
        run=rank,
        encode=encode,
        error_shape=tei_error_for_all if habits.family is Family.TEI else ERROR_SHAPES[habits.family],
        other_error_shapes=tuple(ERROR_SHAPES.values()),
        summary="Rerank documents with the API of TEI, Cohere, Jina, vLLM, Voyage, Mixedbread or Weaviate",
        body=BODIES[0],
        more_bodies=BODIES[1:],
        example={"query": "When does the boat go?", FIELDS[habits.family]: ["The ferry leaves at seven."]},
        answers=(list[_TeiResult], RerankAnswer, VoyageAnswer, MixedbreadAnswer, WeaviateAnswer),
        raw_answer=ROWS,
    )
    for path, habits in _PATHS.items()
)

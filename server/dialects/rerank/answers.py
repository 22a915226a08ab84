"""The answers of the rerank routes: scores in the shapes of four families of clients, and the table of routes."""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from server.dialects.rerank.bodies import ERROR_SHAPES, FIELDS, Family, FamilyRequest, RerankBody, decode
from server.dialects.route import Answer, Call, Route
from server.dialects.tei.shared import tei_error_for_all, timing_headers
from server.dialects.writing.forms import numbers_as_json
from server.dialects.writing.openai_shapes import Usage
from server.dialects.writing.rows import ROWS, as_list, headers, rows_alone
from server.requests.rerank import Ranked, rank
from server.requests.time_slices import TimeSlice
from server.requests.work import Embedded

# Whose errors a path's clients get if the body does not show the family.
_PATHS = {
    "/rerank": Family.TEI,
    "/v1/rerank": Family.RESULTS,
    "/v2/rerank": Family.RESULTS,
    "/v1/reranking": Family.MIXEDBREAD,
}


@dataclass(frozen=True, slots=True)
class _Form:
    """Of one result, in JSON; `%b` is its text."""

    score: bytes  # what its score is called
    text: bytes
    end: bytes = b"}"


_FORMS = {
    Family.TEI: _Form(b"score", b',"text":%b'),
    Family.RESULTS: _Form(b"relevance_score", b',"document":{"text":%b}'),
    Family.VOYAGE: _Form(b"relevance_score", b',"document":%b'),
    Family.MIXEDBREAD: _Form(b"score", b',"input":%b', b',"object":"rank_result"}'),
}


async def encode(call: Call, request: FamilyRequest, ranked: Ranked) -> Answer:
    """Raw scores in the request's order, with the shape documents,1; or results with the best first."""
    scores = Embedded(ranked.scores[:, None], ranked.num_tokens, ranked.truncated)
    timing = timing_headers(call.trace) if request.family is Family.TEI else []
    if call.form and call.form.has_rows_alone:
        return await rows_alone(scores, call.form, beside=timing)
    return Answer(200, [*headers(scores), *timing], await _in_json(request, ranked, request_id=call.trace.request_id))


async def _in_json(request: FamilyRequest, ranked: Ranked, *, request_id: str) -> bytes:
    chosen = ranked.best_first()[: request.top_n]
    results = as_list(await _results(ranked.scores[chosen], chosen, request))
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
        case Family.RESULTS:
            meta = b'{"api_version":{"version":"2"},"tokens":{"input_tokens":%d}}' % num_tokens
            return b'{"id":"rerank-%b","object":"rerank","model":%b,"results":%b,"usage":%b,"meta":%b}' % (
                request_id.encode(),
                name,
                results,
                usage,
                meta,
            )


async def _results(scores: NDArray[np.float32], indices: NDArray[np.intp], request: FamilyRequest) -> list[bytes]:
    """In slices, so that other requests run in between."""
    form, time_slice = _FORMS[request.family], TimeSlice()
    numbers = numbers_as_json(scores)[1:-1].split(b",")
    written = []
    for index, score in zip(indices.tolist(), numbers, strict=True):
        text = form.text % msgspec.json.encode(request.documents[index]) if request.has_texts else b""
        written.append(b'{"index":%d,"%b":%b%b%b' % (index, form.score, score, text, form.end))
        await time_slice.end_if_over()
    return written


class _Document(msgspec.Struct):
    text: str


class _TeiResult(msgspec.Struct):
    index: int
    score: float
    text: str | msgspec.UnsetType = msgspec.UNSET


class _Result(msgspec.Struct):
    index: int
    relevance_score: float
    document: _Document | msgspec.UnsetType = msgspec.UNSET


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
        decode=decode,
        run=rank,
        encode=encode,
        error_shape=tei_error_for_all if family is Family.TEI else ERROR_SHAPES[family],
        summary="Rerank documents with the API of TEI, Cohere, Jina, vLLM, Voyage or Mixedbread",
        body=RerankBody,
        example={"query": "When does the boat go?", FIELDS[family]: ["The ferry leaves at seven."]},
        answers=(list[_TeiResult], RerankAnswer, VoyageAnswer, MixedbreadAnswer),
        raw_answer=ROWS,
    )
    for path, family in _PATHS.items()
)

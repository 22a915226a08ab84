"""What goes out on the rerank routes: scores in the shapes of four families of clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from server.dialects.rerank.bodies import Family, Reply
from server.dialects.tei.answers import timing_headers
from server.dialects.writing.rows import Encoding, as_bytes, as_list, headers
from server.dialects.writing.time_slices import Turns
from server.http.body import Headers
from server.requests.pipeline import Embedded
from server.requests.rerank import Ranked, RerankRequest
from server.requests.trace import Trace

_BYTES_A_TURN = 1 << 18  # of results, about 1 ms
_BYTES_A_RESULT = 256  # what one costs to write, counted in bytes of text


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


def all_headers(ranked: Ranked, reply: Reply, trace: Trace) -> Headers:
    """The answer's headers, less its length; of raw bytes the shape is documents,1."""
    scores = Embedded(ranked.scores[:, None], ranked.num_tokens, ranked.truncated)
    timing = timing_headers(trace) if reply.family is Family.TEI else []
    return [*headers(scores, reply.encoding), *timing]


async def encode(ranked: Ranked, request: RerankRequest, reply: Reply, *, request_id: str) -> bytes | memoryview:
    """The body of the answer: raw scores in the request's order, or results with the best first."""
    if reply.encoding is Encoding.BYTES:
        return as_bytes(ranked.scores)
    chosen = ranked.best_first()[: reply.top_n]
    results = as_list(await _results(ranked.scores[chosen], chosen, request.documents, reply))
    name, num_tokens = orjson.dumps(request.model.name), ranked.num_tokens
    usage = b'{"prompt_tokens":%d,"total_tokens":%d,"truncated_inputs":%d}' % (
        num_tokens,
        num_tokens,
        ranked.num_truncated,
    )
    match reply.family:
        case Family.TEI:
            return results
        case Family.VOYAGE:
            return b'{"object":"list","data":%b,"model":%b,"usage":%b}' % (results, name, usage)
        case Family.MIXEDBREAD:
            wishes = orjson.dumps({"top_k": len(chosen), "return_input": reply.has_texts})[1:]
            return b'{"object":"list","data":%b,"model":%b,"usage":%b,%b' % (results, name, usage, wishes)
        case Family.RESULTS:
            meta = b'{"api_version":{"version":"2"},"tokens":{"input_tokens":%d}}' % num_tokens
            return b'{"id":"rerank-%b","object":"rerank","model":%b,"results":%b,"usage":%b,"meta":%b}' % (
                request_id.encode(),
                name,
                results,
                usage,
                meta,
            )


async def _results(
    scores: NDArray[np.float32], indices: NDArray[np.intp], documents: Sequence[str], reply: Reply
) -> list[bytes]:
    """One after the other; between some of them other requests get their turn."""
    form, turns = _FORMS[reply.family], Turns(_BYTES_A_TURN)
    numbers = orjson.dumps(np.ascontiguousarray(scores), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
    written = []
    for index, score in zip(indices.tolist(), numbers, strict=True):
        text = form.text % msgspec.json.encode(documents[index]) if reply.has_texts else b""
        written.append(b'{"index":%d,"%b":%b%b%b' % (index, form.score, score, text, form.end))
        await turns.wrote(_BYTES_A_RESULT + len(text))
    return written


def answer_schema() -> dict[str, Any]:
    """Of all families."""
    number, text = {"type": "number"}, {"type": "string"}
    counts = {name: {"type": "integer"} for name in ("prompt_tokens", "total_tokens", "truncated_inputs")}
    usage = {"type": "object", "properties": counts}

    def results(score: str, **more: Any) -> dict[str, Any]:
        item = {"index": {"type": "integer"}, score: number, **more}
        return {"type": "array", "items": {"type": "object", "properties": item}}

    def listed(data: dict[str, Any]) -> dict[str, Any]:
        return {"object": {"const": "list"}, "data": data, "model": text, "usage": usage}

    document = {"type": "object", "properties": {"text": text}}
    common = {"id": text, "object": {"const": "rerank"}, "model": text, "usage": usage, "meta": {"type": "object"}}
    common["results"] = results("relevance_score", document=document)
    return {
        "oneOf": [
            {"description": "to `texts`", **results("score", text=text)},
            {"description": "to `documents`", "type": "object", "properties": common},
            {
                "description": "to `documents` with `top_k` or `truncation`",
                "type": "object",
                "properties": listed(results("relevance_score", document=text)),
            },
            {
                "description": "to `input`",
                "type": "object",
                "properties": listed(results("score", input=text, object={"const": "rank_result"})),
            },
        ]
    }

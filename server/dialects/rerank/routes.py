"""The rerank routes: one handler for the clients of text-embeddings-inference and Baseten, of Cohere, Jina, vLLM and
Infinity, of Voyage and of Mixedbread. What a body holds says who is asking, see rerank_bodies.py.
"""

from functools import partial

from server.dialects.rerank.answers import all_headers, answer_schema, encode
from server.dialects.rerank.bodies import Family, RerankBody, decode, family_of
from server.http.route import Answer, Call, Route, failed
from server.requests.errors import ErrorShape, RequestError, openai_answer, tei_answer, voyage_answer
from server.requests.rerank import rank

_ERROR_SHAPES: dict[Family, ErrorShape] = {
    Family.TEI: tei_answer,
    Family.RESULTS: openai_answer,
    Family.VOYAGE: voyage_answer,
    Family.MIXEDBREAD: openai_answer,
}
# Whose errors a path's clients get where the body does not say who they are.
_PATHS = {
    "/rerank": Family.TEI,
    "/v1/rerank": Family.RESULTS,
    "/v2/rerank": Family.RESULTS,
    "/v1/reranking": Family.MIXEDBREAD,
}


async def rerank(call: Call, family: Family) -> Answer:
    """POST /rerank, and the like."""
    return await answer(call, await call.body(), family)


async def answer(call: Call, body: bytes, family: Family) -> Answer:
    """To a body that was read; an error has the shape of its family, or of the one given where it shows none."""
    try:
        with call.held(body):
            try:
                request, reply = decode(body, call.wishes, call.models, max_items=call.resources.max_items)
            except RequestError:
                family = family_of(body) or family
                raise
            del body  # what is in it was copied out
            family, call.trace.encoding = reply.family, reply.encoding.value
            ranked = await rank(call.resources.pipeline, request, call.trace)
        encoded = await encode(ranked, request, reply, request_id=call.trace.request_id)
        return 200, all_headers(ranked, reply, call.trace), encoded
    except Exception as error:
        return failed(error, call.trace, _ERROR_SHAPES[family])


ROUTES = tuple(
    Route(
        path=path,
        handler=partial(rerank, family=family),
        error_shape=_ERROR_SHAPES[family],
        summary="Documents in the order of how well they answer a query",
        body=RerankBody,
        responses={
            "application/json": answer_schema(),
            "application/octet-stream": {"type": "string", "format": "binary"},
        },
    )
    for path, family in _PATHS.items()
)

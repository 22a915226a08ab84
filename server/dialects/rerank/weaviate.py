"""Answers for Weaviate's module reranker-transformers: each document with its score, in the order of the request.

https://github.com/weaviate/reranker-transformers. Its bodies always have `property`: "" beside `documents`, or the one
document.
"""

from collections.abc import Sequence

import msgspec

from server.dialects.writing.forms import numbers_as_json
from server.requests.rerank import Ranked
from server.requests.time_slices import TimeSlice


class WeaviateScore(msgspec.Struct):
    """A document and its score."""

    document: str
    score: float


class WeaviateAnswer(msgspec.Struct):
    """The answer to `documents`, or with `property` to that."""

    query: str
    scores: list[WeaviateScore] | None
    property: str | None
    score: float | None


async def weaviate_answer(query: str, documents: Sequence[str], ranked: Ranked, top_n: int | None) -> bytes:
    """The best `top_n` of several documents. In slices, so that other requests run in between."""
    time_slice, written = TimeSlice(), []
    for index in sorted(ranked.best_first()[:top_n].tolist()):
        document, score = msgspec.json.encode(documents[index]), numbers_as_json(ranked.scores[index : index + 1])[1:-1]
        written.append(b'{"document":%b,"score":%b}' % (document, score))
        await time_slice.end_if_over()
    return b'{"query":%b,"scores":[%b],"property":null,"score":null}' % (msgspec.json.encode(query), b",".join(written))


def weaviate_property_answer(query: str, document: str, ranked: Ranked) -> bytes:
    """Of the one document."""
    texts = msgspec.json.encode(query), msgspec.json.encode(document)
    return b'{"query":%b,"scores":null,"property":%b,"score":%b}' % (*texts, numbers_as_json(ranked.scores)[1:-1])

"""Requests for embeddings, and their way through a pipeline without processes."""

import asyncio
from typing import Any

from server.requests.work import Embedded, EmbedRequest, RequestContext, Trace
from tests.server.edge import Edge, served_model


def a_request(**fields: Any) -> EmbedRequest:
    given = {"model": served_model(), "items": ["one", "three"], "context": RequestContext(), **fields}
    return EmbedRequest(**given)


def embed(request: EmbedRequest, **stand_ins: Any) -> tuple[Embedded, Edge]:
    """The rows; `stand_ins` are set on the pool and the managers, as managers_error=…."""

    async def run() -> tuple[Embedded, Edge]:
        edge = Edge()
        for name, value in stand_ins.items():
            part, _, attribute = name.partition("_")
            setattr(getattr(edge, part), attribute, value)
        try:
            return await edge.pipeline.embed(request, Trace()), edge
        finally:
            assert not edge.page.admitted_tokens.any()  # nothing stays reserved, whatever happened

    return asyncio.run(run())

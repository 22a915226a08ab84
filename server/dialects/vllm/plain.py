"""vLLM's routes that need no body: /version, and /ping as SageMaker sends it."""

import msgspec

from embedline import __version__
from server.dialects.route import Answer, PlainRoute, json_answer
from server.dialects.vllm.shared import vllm_error
from server.requests.models import ServerState


class Ping(msgspec.Struct):
    """The answer of POST /ping."""

    status: str


class Version(msgspec.Struct):
    """The answer of GET /version."""

    version: str


def _version(state: ServerState) -> Answer:
    return json_answer(Version(__version__))


def _ping(state: ServerState) -> Answer:
    """As GET /ping, which asks the same."""
    reason = state.why_not_ready()
    if reason is None:
        return json_answer(Ping("ok"))
    return Answer(503, [(b"content-type", b"text/plain; charset=utf-8"), (b"retry-after", b"2")], reason.encode())


PLAIN_ROUTES = (
    PlainRoute(
        path="/version",
        answer=_version,
        error_shape=vllm_error,
        summary="The version of this server, as vLLM tells its own",
        content=Version,
    ),
    PlainRoute(
        path="/ping",
        method="POST",
        answer=_ping,
        error_shape=vllm_error,
        summary="The same as GET /ping",
        content=Ping,
        statuses=(200, 503),
    ),
)

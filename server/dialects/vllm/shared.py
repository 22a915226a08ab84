"""The shared parts of vLLM's own routes: fields of the bodies, the shape of errors, the ends of answers, and the routes
/version and /ping, which need no body.

https://docs.vllm.ai/en/latest/models/pooling_models.html. `user`, `priority` and `request_id` are taken and change
nothing: classes of work and ids of requests come by header.
"""

import time
from http import HTTPStatus
from typing import Annotated

import msgspec

from embedline import __version__
from server.dialects.error_shapes import openai_error
from server.dialects.reading.text_options import TruncationFields
from server.dialects.route import Answer, Call, PlainRoute, json_answer, not_ready_answer
from server.dialects.row_answers import Usage
from server.requests.errors import ERRORS, RequestError
from server.requests.models import ModelsState, ServedModel

_KINDS = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class CommonFields(TruncationFields, kw_only=True):
    """The fields that the bodies of all of vLLM's routes have."""

    model: str | None = None
    user: str | None = None
    priority: int = 0
    request_id: str | None = None
    # There is no cache of prefixes here. It is checked as vLLM checks it, so that a client's mistake shows.
    cache_salt: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] | None = None


class UsageWithCompletion(Usage):
    """Usage as vLLM has it."""

    completion_tokens: int


def vllm_error(error: RequestError) -> Answer:
    """An error in vLLM's shape: OpenAI's with other types, and the status as `code`."""
    status = ERRORS[type(error)].status
    return openai_error(error, type=_KINDS.get(status) or HTTPStatus(status).phrase, code=status)


def start_of_list(call: Call, model: ServedModel, prefix: bytes, *, kind: bytes = b"list") -> bytes:
    """The answer's JSON up to its data."""
    request_id = msgspec.json.encode(call.trace.request_id)[1:]
    name = msgspec.json.encode(model.name)
    head = (prefix, request_id, kind, time.time(), name)
    return b'{"id":"%b%b,"object":"%b","created":%d,"model":%b,"data":' % head


def end_of_list(*, num_tokens: int, num_truncated: int) -> bytes:
    """The end of the list, and what follows the data."""
    return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":0,"truncated_inputs":%d}}' % (
        num_tokens,
        num_tokens,
        num_truncated,
    )


class Ping(msgspec.Struct):
    """The answer of POST /ping."""

    status: str


class VllmVersion(msgspec.Struct):
    """The answer of GET /version."""

    version: str


def _version(state: ModelsState) -> Answer:
    return json_answer(VllmVersion(__version__))


def _ping(state: ModelsState) -> Answer:
    """Answers as GET /ping does, which asks the same."""
    reason = state.why_not_ready()
    if reason is None:
        return json_answer(Ping("ok"))
    return not_ready_answer(reason)


PLAIN_ROUTES = (
    PlainRoute(
        path="/version",
        answer=_version,
        error_shape=vllm_error,
        summary="The version of this server, as vLLM tells its own",
        content=VllmVersion,
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

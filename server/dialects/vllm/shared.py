"""What vLLM's own routes share: fields of the bodies, the shape of errors, the ends of answers.

https://docs.vllm.ai/en/latest/models/pooling_models.html. `user`, `priority` and `request_id` are taken and change
nothing: classes of work and ids of requests come by header.
"""

import time
from http import HTTPStatus
from typing import Annotated

import msgspec

from server.dialects.reading.truncation import TruncationFields
from server.dialects.route import Answer, Call
from server.dialects.writing.openai_shapes import Usage, openai_error
from server.requests.errors import RequestError
from server.requests.models import ServedModel

_KINDS = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class CommonFields(TruncationFields, kw_only=True):
    """What the bodies of all of vLLM's routes have."""

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
    answer = openai_error(error)
    content = msgspec.json.decode(answer.body)
    kind = _KINDS.get(answer.status) or HTTPStatus(answer.status).phrase
    content["error"] |= {"type": kind, "code": answer.status}
    return answer._replace(body=msgspec.json.encode(content))


def start_of_list(call: Call, model: ServedModel, prefix: bytes) -> bytes:
    """The answer's JSON up to its data."""
    request_id = msgspec.json.encode(call.trace.request_id)[1:]
    name = msgspec.json.encode(model.name)
    return b'{"id":"%b%b,"object":"list","created":%d,"model":%b,"data":' % (prefix, request_id, time.time(), name)


def end_of_list(*, num_tokens: int, num_truncated: int) -> bytes:
    """And what follows the data."""
    return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":0,"truncated_inputs":%d}}' % (
        num_tokens,
        num_tokens,
        num_truncated,
    )

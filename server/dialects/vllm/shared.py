"""The shared parts of vLLM's own routes: fields of the bodies, the shape of errors, the ends of answers, the `metadata`
header, and the routes /version and /ping, which need no body.

https://docs.vllm.ai/en/latest/models/pooling_models.html. `user`, `priority` and `request_id` are taken and change
nothing: classes of work and ids of requests come by header.
"""

import json
import time
from functools import lru_cache
from http import HTTPStatus
from itertools import pairwise
from typing import Annotated

import msgspec

from embedline import __version__
from server.dialects.error_shapes import openai_error
from server.dialects.reading.text_options import TruncationFields
from server.dialects.route import Answer, Call, Headers, PlainRoute, json_answer, not_ready_answer
from server.dialects.row_answers import Usage
from server.dialects.row_forms import Container, Encoding, RowForm
from server.requests.errors import RequestError
from server.requests.models import ServedModel, ServerState
from server.requests.work import Embedded

_KINDS = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
_MAX_METADATA_BYTES = 6000
_MIN_METADATA_ROW_BYTES = 80  # of the header, for each item
_METADATA_ROW = '{"index":%d,"embed_dtype":"%s","endianness":"%s","start":%d,"end":%d,"shape":[%s]}'
_METADATA = '{"id":"embd-%s","created":%d,"model":%s,"data":[%s],"usage":{"prompt_tokens":%d,"total_tokens":%d}}'


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
    answer = openai_error(error)
    content = msgspec.json.decode(answer.body)
    kind = _KINDS.get(answer.status) or HTTPStatus(answer.status).phrase
    content["error"] |= {"type": kind, "code": answer.status}
    return answer._replace(body=msgspec.json.encode(content))


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


def _version(state: ServerState) -> Answer:
    return json_answer(VllmVersion(__version__))


def _ping(state: ServerState) -> Answer:
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


def metadata_header(answer: Answer, embedded: Embedded, form: RowForm, *, model: str, request_id: str) -> Headers:
    """vLLM's `metadata`, which says where the row or rows of each item stand in an answer of raw bytes.

    There is none for other forms, and none where it would be large: it grows with the rows, and clients limit their
    headers, aiohttp for one to 8,190 bytes. Our own headers say the same in few bytes.
    """
    num_items = len(embedded.truncated)
    if form.encoding is not Encoding.BYTES or form.container is not Container.RAW:
        return []
    if num_items * _MIN_METADATA_ROW_BYTES > _MAX_METADATA_BYTES:
        return []
    size = len(answer.body) // max(1, len(embedded.rows))
    width = size // form.dtype.num_bytes
    of_all = (form.dtype.value, form.endianness.value)
    is_ragged = embedded.offsets is not None
    offsets = range(num_items + 1) if embedded.offsets is None else embedded.offsets.tolist()
    rows = ",".join(
        _METADATA_ROW % (index, *of_all, start * size, stop * size, f"{stop - start},{width}" if is_ragged else width)
        for index, (start, stop) in enumerate(pairwise(offsets))
    )
    num_tokens = embedded.num_tokens
    value = (_METADATA % (request_id, time.time(), _as_ascii_json(model), rows, num_tokens, num_tokens)).encode()
    return [(b"metadata", value)] if len(value) <= _MAX_METADATA_BYTES else []


@lru_cache(maxsize=64)
def _as_ascii_json(name: str) -> str:
    """Writes JSON with nothing but ASCII, as headers must be."""
    return json.dumps(name)

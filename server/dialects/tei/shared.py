"""The shared parts of text-embeddings-inference's routes: fields of the bodies, timing headers, the shape of errors.

https://github.com/huggingface/text-embeddings-inference, router/src/http/types.rs. `model` is ours, for a server with
several models.
"""

from typing import Annotated

import msgspec

from server.dialects.error_shapes import ERROR_NAMES
from server.dialects.reading.inputs import SCHEMA, read_inputs
from server.dialects.reading.text_options import PromptFields, read_cut, read_prompts
from server.dialects.route import Answer, Call, Headers, error_answer
from server.requests import errors
from server.requests.errors import RequestError
from server.requests.trace import Trace
from server.requests.work import EmbedRequest

_COMPUTE_TYPE = b"gpu+optimized"  # TEI says so on a CPU too


class InputsBody(PromptFields, kw_only=True):
    """What the bodies of all routes that embed have in common."""

    inputs: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=SCHEMA)]
    model: str | None = None


def read_request(call: Call, fields: InputsBody, *, may_be_empty: bool = False) -> EmbedRequest:
    """Reads what is the same for all routes that embed."""
    model = call.models.choose(fields.model, with_prompt=True)
    given = read_inputs(fields.inputs, "inputs", max_items=call.max_items, may_be_empty=may_be_empty)
    return EmbedRequest(
        **call.common(model),
        texts=given.texts,
        token_ids=given.token_ids,
        **read_prompts(fields, model, name=call.models.asked_name(fields.model), are_ids=given.token_ids is not None),
        **read_cut(fields, model),
        field="inputs",
        is_single=given.is_single,
    )


def timing_headers(trace: Trace) -> Headers:
    """TEI's headers: times are whole milliseconds of the request."""
    total = trace.elapsed()
    return [
        (b"x-compute-type", _COMPUTE_TYPE),
        (b"x-compute-time", _milliseconds(total)),
        (b"x-compute-characters", b"%d" % trace.num_characters),
        (b"x-compute-tokens", b"%d" % trace.num_tokens),
        (b"x-total-time", _milliseconds(total)),
        (b"x-tokenization-time", _milliseconds(trace.tokenize_seconds)),
        (b"x-queue-time", _milliseconds(trace.queue_seconds)),
        (b"x-inference-time", _milliseconds(trace.compute_seconds)),
    ]


def _milliseconds(seconds: float) -> bytes:
    return b"%d" % int(1000 * seconds)


# The statuses that are not those of all dialects.
STATUSES: dict[type[RequestError], int] = {
    errors.InvalidRequest: 422,
    errors.NotTokenizable: 422,
    errors.UnsupportedTask: 424,
    errors.EngineFailed: 424,
}


def tei_error(error: RequestError) -> Answer:
    """An error in TEI's shape (router/src/http/types.rs, ErrorResponse)."""
    return _tei_error(error, {})


def tei_error_for_all(error: RequestError) -> Answer:
    """TEI's error with Cohere's `message` and Voyage's `detail` beside it, for paths that serve their clients too."""
    return _tei_error(error, {"message": error.message, "detail": error.message})


def tei_message(error: RequestError) -> str:
    """Our message, but for what is empty, of which clients may know TEI's."""
    return f"`{error.param}` cannot be empty" if isinstance(error, errors.EmptyInput) else error.message


def _tei_error(error: RequestError, beside: dict[str, str]) -> Answer:
    content = {"error": tei_message(error), "error_type": ERROR_NAMES[type(error)].tei_type, **beside}
    return error_answer(STATUSES.get(type(error), errors.ERRORS[type(error)].status), content, error)

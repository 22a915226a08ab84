"""What the routes of text-embeddings-inference share: fields of the bodies, timing headers, the shape of errors.

https://github.com/huggingface/text-embeddings-inference, router/src/http/types.rs. `model` is ours, for a server with
several models.
"""

from typing import Annotated

import msgspec

from server.dialects.reading.inputs import SCHEMA, read_inputs, read_prompt
from server.dialects.route import Answer, Call, Headers, error_answer
from server.requests import errors
from server.requests.errors import InvalidRequest, RequestError
from server.requests.models import ServedModel
from server.requests.trace import Trace
from server.requests.work import EmbedRequest
from tokenizer_pool.messages import Truncation

_COMPUTE_TYPE = b"gpu+optimized"  # TEI says so on a CPU too
_DIRECTIONS = {
    None: Truncation.RIGHT,
    "left": Truncation.LEFT,
    "Left": Truncation.LEFT,
    "right": Truncation.RIGHT,
    "Right": Truncation.RIGHT,
}


class Truncating(msgspec.Struct, kw_only=True):
    """What happens to texts that are too long."""

    truncate: bool | None = None  # None = as --auto-truncate says
    truncation_direction: str | None = None


class Parameters(Truncating):
    """How texts become tokens."""

    prompt_name: str | None = None


class InputsBody(Parameters, kw_only=True):
    """What the bodies of all routes that embed have in common."""

    inputs: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=SCHEMA)]
    model: str | None = None


def read_request(call: Call, fields: InputsBody) -> EmbedRequest:
    """What is the same for all routes that embed."""
    model = call.models.choose(fields.model)
    given = read_inputs(fields.inputs, "inputs", max_items=call.max_items)
    return EmbedRequest(
        model=model,
        texts=given.texts,
        token_ids=given.token_ids,
        prompt=read_prompt(fields.prompt_name, given, model),
        truncation=read_truncation(fields, model),
        request_class=call.options.request_class,
        deadline=call.options.deadline,
        field="inputs",
        is_single=given.is_single,
    )


def read_truncation(parameters: Truncating, model: ServedModel) -> Truncation:
    """Raises InvalidRequest."""
    direction = _DIRECTIONS.get(parameters.truncation_direction)
    if direction is None:
        raise InvalidRequest("truncation_direction must be left or right", param="truncation_direction")
    is_on = model.truncation is not Truncation.NONE if parameters.truncate is None else parameters.truncate
    return direction if is_on else Truncation.NONE


def read_is_query(input_type: str | None) -> bool:
    """Raises InvalidRequest."""
    if input_type not in (None, "query", "document"):
        raise InvalidRequest("input_type must be query or document", param="input_type")
    return input_type == "query"


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


# The `error_type` of each error, and the status where it is not the one that all dialects have.
ERROR_NAMES: dict[type[RequestError], tuple[str, int | None]] = {
    errors.InvalidRequest: ("Validation", 422),
    errors.EmptyInput: ("Empty", None),
    errors.MalformedBody: ("Validation", None),
    errors.NotTokenizable: ("Tokenizer", 422),
    errors.UnsupportedTask: ("Backend", 424),
    errors.Unauthorized: ("Unauthorized", None),
    errors.Forbidden: ("Unauthorized", None),
    errors.ModelNotFound: ("Validation", None),
    errors.NoSuchRoute: ("Validation", None),
    errors.WrongMethod: ("Validation", None),
    errors.BodyTooSlow: ("Validation", None),
    errors.PayloadTooLarge: ("Validation", None),
    errors.UnsupportedMedia: ("Validation", None),
    errors.HeadTooLarge: ("Validation", None),
    errors.Overloaded: ("Overloaded", None),
    errors.EngineFailed: ("Backend", 424),
    errors.NotReady: ("Unhealthy", None),
    errors.DeadlineExceeded: ("Overloaded", None),
}


def tei_error(error: RequestError) -> Answer:
    """An error in TEI's shape (router/src/http/types.rs, ErrorResponse)."""
    kind, status = ERROR_NAMES[type(error)]
    message = f"`{error.param}` cannot be empty" if isinstance(error, errors.EmptyInput) else error.message  # TEI's
    content = {"error": message, "error_type": kind}
    return error_answer(status or errors.ERRORS[type(error)].status, content, error)

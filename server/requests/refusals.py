"""The refusals of the tokenizer pool and the batch managers, as errors that name the field or item."""

from collections.abc import Callable

from batch_manager.messages import RequestRefusal, RequestRefused
from engine.types import OutputKind
from server.requests.errors import (
    RETRY_AFTER,
    DeadlineExceeded,
    EmptyInput,
    EngineFailed,
    InvalidRequest,
    NotReady,
    NotTokenizable,
    RequestError,
    UnsupportedTask,
    stopping,
)
from server.requests.models import ServedModel
from server.requests.work import TOO_LARGE, DecodeRequest, TokenizeRequest
from tokenizer_pool.client import MAX_DECODE_IDS, MAX_DETAIL_CHARS
from tokenizer_pool.messages import TextRefusal, TextRefused
from tokenizer_pool.shortening import MAX_TEXT_BYTES, MAX_UNCUT_CHARS

_NO_TEMPLATE = "can't be taken: this model has no chat template; send texts instead"
_TOO_MUCH = "is too large for one request; send fewer items a request"

NameOf = Callable[[int], str]  # what a message calls an item; all of them where the index is -1

_TEXT_ERRORS: dict[TextRefusal, type[RequestError]] = {
    TextRefusal.EMPTY: EmptyInput,
    TextRefusal.FAILED: NotTokenizable,
}


def text_error(refused: TextRefused, name_of: NameOf, model: ServedModel, *, is_pair: bool = False) -> RequestError:
    """A text, or list of ids, that gave no ids for the model."""
    param = name_of(refused.index)
    match refused.reason:
        case TextRefusal.TOO_LONG:
            limit = f"{refused.max_tokens} tokens" if refused.max_tokens else "the model's limit"
            together = " together with the text it is paired with" if is_pair else ""
            problem = f"is longer than {limit}{together} and truncation is off"
        case TextRefusal.NO_ROOM:
            problem = f"has no room: {refused.num_tokens} special tokens leave none of {refused.max_tokens}"
        case TextRefusal.EMPTY:
            problem = "has no tokens"
        case TextRefusal.OUT_OF_VOCABULARY:
            problem = f"has a token id that is not from 0 to {model.vocab_size - 1}"
        case TextRefusal.FAILED:
            problem = "can't be tokenized"
        case TextRefusal.TOO_MUCH:
            problem = _too_much(refused.max_chars, is_pair=is_pair)
        case TextRefusal.NO_TEMPLATE:
            problem = _NO_TEMPLATE
        case TextRefusal.UNUSED:
            return _unused()
        case TextRefusal.TOO_LARGE:
            problem = (
                f"has not enough tokens for the limit of {refused.max_tokens} in its first {MAX_TEXT_BYTES} bytes in "
                "UTF-8, and a text is read no further"
            )
        case TextRefusal.UNCUT:
            problem = (
                f"has {MAX_UNCUT_CHARS} characters without a place to cut, before there are enough tokens for the "
                f"limit of {refused.max_tokens}"
            )
    return _TEXT_ERRORS.get(refused.reason, InvalidRequest)(f"{param} {problem}", param=param)


def _too_much(max_chars: int, *, is_pair: bool) -> str:
    """The message that a request is too large. `max_chars` is 0 where a worker's answer is."""
    if not max_chars:
        return _TOO_MUCH
    counted = ", a query counted with each document" if is_pair else ", a prompt counted with each text"
    return f"is too large for one request, which may have {max_chars} characters together{counted}; send fewer items"


def _unused() -> InvalidRequest:
    """The error for a name that a chat template would pass over."""
    name = "chat_template_kwargs"
    return InvalidRequest(f"{name} has a name that this model's chat template does not use", param=name)


def details_error(refused: TextRefused, request: TokenizeRequest | DecodeRequest) -> RequestError:
    """A text that gave no tokens to show, or ids that gave no text."""
    param = request.name_of(refused.index)
    match refused.reason:
        case TextRefusal.TOO_MUCH:
            is_text = isinstance(request, TokenizeRequest)
            limit = f"{MAX_DETAIL_CHARS} characters" if is_text else f"{MAX_DECODE_IDS} ids"
            problem = f"is too large for one request, which may have {limit} together; send fewer or shorter ones"
        case TextRefusal.OUT_OF_VOCABULARY:
            problem = "has an id that the tokenizer has no token for"
        case TextRefusal.NO_TEMPLATE:
            problem = _NO_TEMPLATE
        case TextRefusal.UNUSED:
            return _unused()
        case _:
            verb = "tokenized" if isinstance(request, TokenizeRequest) else "decoded"
            return NotTokenizable(f"{param} can't be {verb}", param=param)
    return InvalidRequest(f"{param} {problem}", param=param)


def batch_error(refused: RequestRefused, name_of: NameOf) -> RequestError:
    """The error for ids that gave no rows."""
    param = name_of(refused.index) if refused.index >= 0 else None
    where = param or "the request"
    match refused.reason:
        case RequestRefusal.DEADLINE:
            return DeadlineExceeded("the request's deadline passed while it waited")
        case RequestRefusal.TOO_LATE:
            message = "the request can't be computed before its deadline any more"
            return DeadlineExceeded(message, reason="deadline_dispatch")
        case RequestRefusal.NO_ENGINE:
            return NotReady("no engine is ready", retry_after=refused.retry_after or RETRY_AFTER["no_manager"])
        case RequestRefusal.STOPPING:
            return stopping()
        case RequestRefusal.TOO_LONG:
            return InvalidRequest(f"{where} is longer than the engine takes", param=param)
        case RequestRefusal.ANSWER_TOO_LARGE:
            return InvalidRequest(TOO_LARGE)
        case RequestRefusal.NON_FINITE:
            return EngineFailed(f"the model gives numbers that are not finite for {where}", param=param)
        case _:
            return EngineFailed(f"the engine failed on {where}", param=param)


_OUTPUT_NAMES = {
    OutputKind.POOLED: "embeddings",
    OutputKind.LOGITS: "scores of texts",
    OutputKind.TOKENS: "rows of single tokens",
    OutputKind.SPARSE: "sparse embeddings",
    OutputKind.TOKEN_LOGITS: "labels of tokens",
    OutputKind.MULTI_VECTOR: "rows for late interaction",
}


def unsupported(model: ServedModel, lack: str) -> UnsupportedTask:
    """The error for what a model does not do. It says what the model does."""
    return UnsupportedTask(f"this model gives {lack}; it is for {model.task.value}")


def lacks_outputs(model: ServedModel, outputs: OutputKind) -> UnsupportedTask:
    """The error for kinds of rows that the model does not give."""
    return unsupported(model, f"no {', '.join(_OUTPUT_NAMES[output] for output in outputs)}")

"""The pieces of a dialect: a `Route` describes one POST path, a `Call` is one request as its decoder sees it, and a
`PlainRoute` is a path that needs no body. `forms_of` gives the forms of a body that needs one of several fields.

Knows no dialect, and of HTTP only status codes and headers.
"""

import functools
import math
import operator
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypedDict, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT
from msgspec.structs import FieldInfo

from server.dialects.row_forms import FLOATS, NO_ROWS, WITH_ROWS_ONLY, Container, RowForm
from server.requests.errors import ERRORS, BodyTooSlow, NotReady, RequestError, Unauthorized
from server.requests.models import ModelsState, ModelTable, ServedModel
from server.requests.pipeline import Pipeline
from server.requests.row_memory import RequestContext
from server.requests.trace import Trace
from wire.vocabulary import RequestClass

Headers = list[tuple[bytes, bytes]]
JSON = (b"content-type", b"application/json")
Forms = tuple[type[msgspec.Struct], ...]


class Answer(NamedTuple):
    """A whole answer, without the headers that every answer gets."""

    status: int
    headers: Headers
    body: bytes | bytearray | memoryview


ErrorShape = Callable[[RequestError], Answer]


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options that a request's headers ask for."""

    request_class: RequestClass | None = None  # None = it says nothing
    deadline: float = math.inf  # time.monotonic() seconds
    accepts: Container = Container.JSON  # what rows are wanted in


class Common(TypedDict):
    """The part of its call that every request has."""

    model: ServedModel
    request_class: RequestClass | None
    deadline: float
    context: RequestContext


@dataclass(slots=True)
class Call:
    """One request. Only `form` and `error_shape` change: the decoder may set them."""

    options: RequestOptions
    models: ModelTable
    max_items: int  # texts, pairs or lists of ids that one request may have
    trace: Trace
    error_shape: ErrorShape  # the route's own, unless the body shows another family of clients
    context: RequestContext
    form: RowForm = NO_ROWS  # of the rows in the answer
    has_documents_in_objects: bool = True  # whether rerank's results have documents as {"text": …} or as texts

    def common(self, model: ServedModel) -> Common:
        """The common part of a request to this model."""
        options = self.options
        return {
            "model": model,
            "request_class": options.request_class,
            "deadline": options.deadline,
            "context": self.context,
        }

    def set_form(self, wanted: RowForm = FLOATS, *, offers: frozenset[Container] = WITH_ROWS_ONLY) -> None:
        """Uses the body's form, in what the `accept` header prefers of the containers that the route offers."""
        self.form = wanted.put_into(self.options.accepts, offers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A path that takes POST. All functions may raise RequestError."""

    path: str
    decode: Callable[[Call, bytes], Any]  # the body to a request of server/requests
    run: Callable[[Pipeline, Any, Trace], Awaitable[Any]]  # a request to its result
    encode: Callable[[Call, Any, Any], Awaitable[Answer]]  # a request and its result to the answer
    error_shape: ErrorShape
    summary: str  # this and what follows is for the OpenAPI page
    body: type[msgspec.Struct]
    example: dict[str, Any]  # a body that the route takes; tests send it
    answers: tuple[Any, ...]  # types that msgspec knows: the forms of the answer in JSON
    raw_answer: str = ""  # what the raw bytes are; "" = the route has none
    more_bodies: tuple[type[msgspec.Struct], ...] = ()  # other forms of the body
    takes_lines: bool = False  # whether a body may be lines (NDJSON), each of which is answered with a line
    other_error_shapes: tuple[ErrorShape, ...] = ()  # which the body may ask for

    @property
    def bodies(self) -> tuple[type[msgspec.Struct], ...]:
        """Every form of the body."""
        return (self.body, *self.more_bodies)

    @property
    def all_error_shapes(self) -> tuple[ErrorShape, ...]:
        """The error shapes of the route, each once, its own first."""
        return tuple(dict.fromkeys((self.error_shape, *self.other_error_shapes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRoute:
    """A path that needs no body: what is known of the server makes the answer. FastAPI serves it."""

    path: str
    method: str = "GET"
    answer: Callable[[ModelsState], Answer]
    error_shape: ErrorShape
    summary: str
    is_listed: bool = True  # on the OpenAPI page; this and what follows is for it
    content: Any = None  # a type that msgspec knows: the answer in JSON; None = there is none
    statuses: tuple[int, ...] = (200,)  # of answers


def json_answer(content: Any) -> Answer:
    """An answer of which msgspec makes the JSON, if it is not made."""
    return Answer(200, [JSON], content if isinstance(content, bytes) else msgspec.json.encode(content))


def retry_after(seconds: float) -> str:
    """The header's value: whole seconds, so as not to ask too early."""
    return str(max(1, math.ceil(seconds)))


def not_ready_answer(reason: str) -> Answer:
    """The 503 of routes for health, in plain text."""
    seconds = retry_after(ERRORS[NotReady].retry_after)
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"retry-after", seconds.encode())]
    return Answer(503, headers, reason.encode())


def error_answer(status: int, content: dict[str, Any], error: RequestError) -> Answer:
    """An error with this JSON as its body, and the headers that go with it."""
    headers = [JSON]
    if error.retry_after is not None:
        headers.append((b"retry-after", retry_after(error.retry_after).encode()))
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, BodyTooSlow):  # the rest of the body would keep the connection open
        headers.append((b"connection", b"close"))
    return Answer(status, headers, msgspec.json.encode(content))


def forms_of(body: type[msgspec.Struct], *choices: Collection[str]) -> Forms:
    """The forms of a body: for each choice of fields one that must have them, and that lacks the fields of the
    others."""
    chosen = {name for names in choices for name in names}
    return tuple(_form(body, names, without=chosen.difference(names)) for names in choices)


def _form(body: type[msgspec.Struct], required: Collection[str], *, without: Collection[str]) -> type[msgspec.Struct]:
    own = [field for field in msgspec.structs.fields(body) if field.name not in without]
    words = "".join(field.encode_name.title().replace("_", "") for field in own if field.name in required)
    fields = [_required(field) if field.name in required else _optional(field) for field in own]
    return msgspec.defstruct(
        f"{body.__name__}Of{words}",
        fields,
        kw_only=True,
        module=body.__module__,
        namespace={"__doc__": body.__doc__},
    )


def _required(field: FieldInfo) -> tuple[str, Any, Any]:
    return field.name, _without_null(field.type), msgspec.field(name=field.encode_name)


def _optional(field: FieldInfo) -> tuple[str, Any, Any]:
    if field.default_factory is not NODEFAULT:
        return field.name, field.type, msgspec.field(default_factory=field.default_factory, name=field.encode_name)
    return field.name, field.type, msgspec.field(default=field.default, name=field.encode_name)


def _without_null(kind: Any) -> Any:
    if get_origin(kind) not in (UnionType, Union):
        return kind
    return functools.reduce(operator.or_, (part for part in get_args(kind) if part is not NoneType))

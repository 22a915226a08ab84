"""What a route is: a `Route` describes one method of one path, and a `Call` is one request as its route sees it.
`forms_of` gives the forms of a body that needs one of several fields.

Knows no dialect, and of HTTP only status codes and headers.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypedDict, Union, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from server.dialects.answers import Answer, ErrorShape, Streamed
from server.dialects.row_answers import FLOATS, NO_ROWS, WITH_ROWS_ONLY, Container, RowForm
from server.requests.errors import RequestError
from server.requests.models import ModelsState, ModelTable, ServedModel
from server.requests.pipeline import Pipeline
from server.requests.row_memory import RequestContext
from server.requests.work import Trace
from wire.vocabulary import RequestClass

Forms = tuple[type[msgspec.Struct], ...]


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options that a request's headers ask for."""

    request_class: RequestClass | None = None  # None = it says nothing
    deadline: float = math.inf  # time.monotonic() seconds
    accepts: Container = Container.JSON  # what rows are wanted in


_NO_OPTIONS = RequestOptions()
_NO_MODELS = ModelTable([])
_NOTHING: Any = None


class Common(TypedDict):
    """The part of its call that every request has."""

    model: ServedModel
    request_class: RequestClass | None
    deadline: float
    context: RequestContext


@dataclass(slots=True)
class Call:
    """One request. `form` and `error_shape` change while it is decoded: its decoder may set them.

    options and models are those of a route that computes; others get neither, and so refuse no request because of them.
    """

    state: ModelsState
    max_items: int  # texts, pairs or lists of ids that one request may have
    trace: Trace
    error_shape: ErrorShape  # the route's own, unless the body shows another family of clients
    context: RequestContext
    options: RequestOptions = _NO_OPTIONS
    models: ModelTable = _NO_MODELS
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


class Response(NamedTuple):
    """What the OpenAPI page says of one status of a route.

    content  a type that msgspec knows, of which the body is JSON, or media types with their schemas; None = no body
    """

    text: str
    content: Any = None


TEXT = {"text/plain": {"schema": {"type": "string"}}}
OBJECT = {"application/json": {"schema": {"type": "object"}}}
NOT_READY = Response("No engine can compute right now.", TEXT)
Schema = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path: of the path, names in braces stand for parts of it, and `{name:path}` for several.

    A route that computes has `decode`, `run` and `encode`, and takes POST; every other one has `answer`. All functions
    may raise RequestError.
    """

    path: str
    method: str = "POST"
    error_shape: ErrorShape
    decode: Callable[[Any, bytes], Any] = _NOTHING  # a Call and its body to a request of server/requests
    run: Callable[[Pipeline, Any, Trace], Awaitable[Any]] = _NOTHING  # a request to its result
    encode: Callable[[Call, Any, Any], Awaitable[Answer]] = _NOTHING  # a request and its result to the answer
    answer: Callable[..., Awaitable[Answer | Streamed]] | None = None  # gets the Call
    takes_lines: bool = False  # whether a body may be lines (NDJSON), each of which is answered with a line
    other_error_shapes: tuple[ErrorShape, ...] = ()  # which the body may ask for
    # what follows is for the OpenAPI page
    summary: str
    is_listed: bool = True
    description: str | None = None
    operation_id: str = ""  # "" = made of method and path
    parameters: tuple[Schema, ...] = ()  # beside the names in the path
    body: type[msgspec.Struct] = _NOTHING  # a route whose body no type describes has `body_schema`
    more_bodies: tuple[type[msgspec.Struct], ...] = ()  # other forms of the body
    body_schema: Schema | None = None
    example: dict[str, Any] = dataclasses.field(default_factory=dict)  # a body that the route takes; tests send it
    answers: tuple[Any, ...] = ()  # of a route that computes: types that msgspec knows, the forms of the answer in JSON
    raw_answer: str = ""  # what the raw bytes are; "" = the route has none
    responses: Mapping[int, Response] = dataclasses.field(default_factory=dict)  # of every other route
    errors: tuple[type[RequestError], ...] = ()  # that it answers, beside those of all routes

    @property
    def bodies(self) -> tuple[type[msgspec.Struct], ...]:
        """Every form of the body."""
        return (self.body, *self.more_bodies) if self.body is not None else ()

    @property
    def all_error_shapes(self) -> tuple[ErrorShape, ...]:
        """The error shapes of the route, each once, its own first."""
        return tuple(dict.fromkeys((self.error_shape, *self.other_error_shapes)))


def forms_of(body: type[msgspec.Struct], *choices: Collection[str]) -> Forms:
    """The forms of a body: for each choice of fields one that must have them, and that lacks the fields of the
    others."""
    chosen = {name for names in choices for name in names}
    return tuple(_form(body, names, without=chosen.difference(names)) for names in choices)


def _form(body: type[msgspec.Struct], required: Collection[str], *, without: Collection[str]) -> type[msgspec.Struct]:
    own = [field for field in msgspec.structs.fields(body) if field.name not in without]
    words = "".join(field.encode_name.title().replace("_", "") for field in own if field.name in required)
    fields = [_field(field, is_required=field.name in required) for field in own]
    return msgspec.defstruct(
        f"{body.__name__}Of{words}",
        fields,
        kw_only=True,
        module=body.__module__,
        namespace={"__doc__": body.__doc__},
    )


def _field(field: FieldInfo, *, is_required: bool) -> tuple[str, Any, Any]:
    if is_required:
        return field.name, _without_null(field.type), msgspec.field(name=field.encode_name)
    usual: Any = {"default": field.default, "default_factory": field.default_factory}  # one of them is NODEFAULT
    return field.name, field.type, msgspec.field(name=field.encode_name, **usual)


def _without_null(kind: Any) -> Any:
    if get_origin(kind) not in (UnionType, Union):
        return kind
    return functools.reduce(operator.or_, (part for part in get_args(kind) if part is not NoneType))

"""What a route is: a `Route` describes one method of one path, and a `Call` is one request as its route sees it.

Knows no dialect, and of HTTP only status codes and headers.
"""

import dataclasses
import functools
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypedDict

import msgspec

from server.dialects.answers import Answer, ErrorShape, Streamed, openai_error
from server.dialects.fields.field import forms_of, rows_of
from server.dialects.reading.json_body import FieldsReader
from server.dialects.row_answers import FLOATS, NO_ROWS, WITH_ROWS_ONLY, Container, RowForm
from server.requests.errors import InvalidRequest, RequestError
from server.requests.models import LORA_PATH, ModelsState, ModelTable, ServedModel
from server.requests.pipeline import Pipeline
from server.requests.work import RequestContext, Trace
from wire.vocabulary import RequestClass


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options that a request's headers ask for."""

    request_class: RequestClass | None = None  # None = it says nothing
    deadline: float = math.inf  # time.monotonic() seconds
    accepts: Container = Container.JSON  # what rows are wanted in


_NO_OPTIONS = RequestOptions()
_NO_MODELS = ModelTable([])
_NOTHING: Any = None


class NamesModel(Protocol):
    """A body, which may name a model and an adapter."""

    model: str | None
    lora_path: str | list[str | None] | None


class Common(TypedDict):
    """The part of its call that every request has."""

    model: ServedModel
    request_class: RequestClass | None
    deadline: float
    context: RequestContext


@dataclass(slots=True)
class Call:
    """One request. `form`, `error_shape` and `route` change while it is decoded: its decoder may set them.

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
    route: "Route" = _NOTHING  # of HTTP's requests: the one that was asked, or that it chose for this body
    has_documents_in_objects: bool = True  # whether rerank's results have documents as {"text": …} or as texts

    def choose(self, body: NamesModel, *, with_prompt: bool = False, name: str | None = None) -> ServedModel:
        """The model or adapter that is asked for. `with_prompt` is as for ModelTable.choose, and `name` stands for the
        body's `model` where that is left out. Raises ModelNotFound, NotReady and InvalidRequest."""
        name, lora = name if body.model is None else body.model, body.lora_path
        if isinstance(lora, list):
            if len(set(lora)) > 1:
                raise InvalidRequest(
                    f"several adapters can't be given in {LORA_PATH}: send a request for each", param=LORA_PATH
                )
            lora = lora[0] if lora else None
        if lora is None:
            return self.models.choose(name, with_prompt=with_prompt)
        return self.models.choose_lora(lora, name, with_prompt=with_prompt)

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


class Stages(NamedTuple):
    """How an answer is computed. Decoders raise RequestError, naming the field or index. Encoders do long work in
    slices, so that other requests run in between."""

    decode: Callable[[Any, Any], Any]  # a Call and its body, as the route reads it, to a request of server/requests
    run: Callable[[Pipeline, Any, Trace], Awaitable[Any]]  # a request to its result
    encode: Callable[[Call, Any, Any], Coroutine[Any, Any, Answer]]  # a request and its result to the answer


@functools.cache
def _reader_of(body: type[msgspec.Struct]) -> Callable[[bytes], Any]:
    return FieldsReader(body).read


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path: of the path, names in braces stand for parts of it, and `{name:path}` for several.

    A route that computes has `stages`, or chooses one that has, and takes POST; every other one has `answer`. All
    functions may raise RequestError.
    """

    path: str
    method: str = "POST"
    error_shape: ErrorShape = openai_error
    stages: Stages = _NOTHING
    read: Callable[[bytes], Any] = _NOTHING  # what `decode` gets of a body; by default the fields of `body`
    body: type[msgspec.Struct] = _NOTHING  # a route whose body no type describes has `body_schema`
    choose: Callable[[Call, bytes], "Route"] | None = None  # the route that answers this body in the place of this one
    answer: Callable[..., Awaitable[Answer | Streamed]] | None = None  # gets the Call
    takes_lines: bool = False  # whether a body may be lines (NDJSON), each of which is answered with a line
    other_error_shapes: tuple[ErrorShape, ...] = ()  # which the body may ask for
    # what follows is for the OpenAPI page
    summary: str
    is_listed: bool = True
    description: str | None = None
    operation_id: str = ""  # "" = made of method and path
    parameters: tuple[Schema, ...] = ()  # beside the names in the path
    one_of: tuple[tuple[str, ...], ...] = ()  # choices of fields: a body has all of one, and none of the others
    more_bodies: tuple[type[msgspec.Struct], ...] = ()  # other forms of the body
    body_schema: Schema | None = None
    # a body that the route takes, of one that computes by default one text; tests send it
    example: dict[str, Any] = dataclasses.field(default_factory=dict)
    answers: tuple[Any, ...] = ()  # of a route that computes: types that msgspec knows, the forms of the answer in JSON
    raw_answer: str = ""  # what the raw bytes are; "" = the route has none
    responses: Mapping[int, Response] = dataclasses.field(default_factory=dict)  # of every other route
    errors: tuple[type[RequestError], ...] = ()  # that it answers, beside those of all routes

    def __post_init__(self) -> None:
        """Makes the reader at once: a route refuses the fields of all others by their names."""
        if self.answer is None and not self.example:
            field = next((name for name, row in rows_of(self.body).items() if row.items is not None), "")
            object.__setattr__(self, "example", {field: "The ferry leaves at seven."})
        if self.stages is not None and self.read is None:
            object.__setattr__(self, "read", _reader_of(self.body))

    def decode(self, call: Call, body: bytes) -> Any:
        """The request of a body. Raises RequestError, naming the field or index."""
        if self.choose is None:
            return self.stages.decode(call, self.read(body))
        call.route = route = self.choose(call, body)
        call.error_shape = route.error_shape
        return route.decode(call, body)

    @property
    def bodies(self) -> tuple[type[msgspec.Struct], ...]:
        """Every form of the body."""
        if self.body is None:
            return ()
        return (*(forms_of(self.body, self.one_of) if self.one_of else (self.body,)), *self.more_bodies)

    @property
    def all_error_shapes(self) -> tuple[ErrorShape, ...]:
        """The error shapes of the route, each once, its own first."""
        return tuple(dict.fromkeys((self.error_shape, *self.other_error_shapes)))

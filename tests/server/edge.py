"""The edge in one process: a model, and the ASGI application with stand-ins for the pool and the managers."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

import numpy as np

import wire.parts
from batch_manager.client import BatchManagers
from batch_manager.messages import RequestResults, Submission
from engine.types import OutputKind, Rows
from server.dialects.answers import openai_error
from server.dialects.route import Call, RequestOptions, Route
from server.dialects.table import PLAIN_ROUTES, ROUTES
from server.features.table import FEATURES
from server.frontend.parts import Off, Part
from server.frontend.request_log import RequestMetrics
from server.http.access import Hosts, Keys
from server.http.app import App
from server.http.body import ASGIApp, Message, Receive, RequestBodies, TimedReceive
from server.http.request import BodyDecoder, HttpRequest, SharedByRequests
from server.http.routes import own_routes
from server.requests.admission import Admission, WaitBudgets
from server.requests.limits import OpenRequest
from server.requests.models import ModelsState, ModelTable, ServedModel
from server.requests.pipeline import Pipeline
from server.requests.work import RequestContext, Trace
from server.settings.api_keys import ApiKey
from tokenizer_pool import shortening
from tokenizer_pool.client import TokenizerPool
from tokenizer_pool.messages import TextRefusal, TextRefused, Truncation
from tokenizer_pool.tasks import Chat, Token, TokenizedTexts
from wire.control import Json
from wire.metrics import Recorder
from wire.page import Page

DIMENSIONS = 8
ERROR_KEYS = {"error", "message", "detail", "code", "type"}  # of an error in OpenAI's shape


def served_model(**changes: Any) -> ServedModel:
    fields: dict[str, Any] = {
        "index": 0,
        "name": "the-model",
        "dimensions": DIMENSIONS,
        "max_seqlen": 16,
        "vocab_size": 100,
        "normalize": False,
        "outputs": OutputKind.POOLED | OutputKind.TOKENS,
        "truncation": Truncation.RIGHT,
    }
    return ServedModel(**{**fields, **changes})


def one_model(**changes: Any) -> ModelTable:
    return ModelTable([served_model(**changes)])


def new_call(options: RequestOptions | None = None, *, models: ModelTable | None = None, max_items: int = 4) -> Call:
    """A request as a decoder gets it."""
    state, trace = cast(ModelsState, None), Trace("POST", "/", "the-request")
    options, models = options or RequestOptions(), models or one_model()
    return Call(state, max_items, trace, openai_error, RequestContext(), options, models)


def ready_state(**changes: Any) -> Json:
    """A STATE of a server that is ready."""
    info = {"name": "the-model", "dimensions": DIMENSIONS, "max_seqlen": 16, "vocab_size": 100, "normalize": False}
    info |= {"outputs": OutputKind.POOLED | OutputKind.TOKENS, "pooling": "last", "dtype": "float32", "engine": "fake"}
    model = {"index": 0, "info": info, "truncation": Truncation.RIGHT, "default_prompt": "", "loaded_at": 7}
    model |= {"model_id": "somebody/the-model", "revision": "", "prompts": {"query": "Q: "}}
    model |= {"fingerprint": {"id": "0123456789abcdef"}}
    state = {"ready": True, "reason": None, "names": ["the-model"], "models": [model]}
    return {
        **state,
        "limits": {"max_client_batch_size": 4, "max_batch_tokens": 64, "interactive_max_wait": 2.0},
        **changes,
    }


def state_with(outputs: OutputKind, **model: Any) -> Json:
    """The same with a model that gives other outputs; `model` is what else is told of it, as its task."""
    loaded = ready_state()
    loaded["models"][0] |= model
    loaded["models"][0]["info"] |= {"outputs": outputs}
    return loaded


def state_with_everything() -> Json:
    """A STATE with a model that gives all there is, so that every route has an answer."""
    return state_with(OutputKind(sum(OutputKind)))


def route_of(path: str) -> Route:
    """The route of this path that computes."""
    (route,) = (route for route in ROUTES if route.path == path)
    return route


def good_body(path: str) -> bytes:
    """One that the route of this path takes."""
    return json.dumps(route_of(path).example).encode()


def decoded(path: str, options: RequestOptions | None = None, models: ModelTable | None = None, **fields: Any) -> Any:
    """The request to a model that the route of this path makes of a good body with these fields; of several the first.

    Where a route chooses another one, it is that one's.
    """
    body = json.loads(good_body(path)) | fields
    if path == "/vertex":
        body = {"instances": [body["instances"][0] | fields]}
    request = route_of(path).decode(new_call(options, models=models), json.dumps(body).encode())
    request = request[0].request if isinstance(request, list) else request
    return getattr(request, "work", request)


@dataclass
class Tokenizers:
    """One id for each character, of type 1 in the second text of a pair; chats are their messages, one after another.

    What it was asked, and what it raises instead; waits for `gate` where there is one.
    """

    error: Exception | None = None
    gate: asyncio.Event | None = None
    vocab_size: int = 30_522  # ids that are decoded
    asked: list[tuple[Sequence[str], dict[str, Any]]] = field(default_factory=list)
    at_work: Callable[[], None] = lambda: None

    async def tokenize(self, texts: Sequence[str], **how: Any) -> TokenizedTexts:
        await self._work(texts, how)
        pairs = list(zip(texts, how.get("pair_texts") or [""] * len(texts), strict=True))
        seqlens = [len(first) + len(second) for first, second in pairs]
        ids = np.array([ord(character) % 100 for pair in pairs for text in pair for character in text], np.int32)
        types = np.repeat(np.arange(2 * len(pairs)) % 2, [len(text) for pair in pairs for text in pair])
        truncated = np.array([seqlen > 16 for seqlen in seqlens], np.uint8)
        offsets = np.cumsum([0, *seqlens], dtype=np.int32)
        return TokenizedTexts(
            ids, offsets, truncated, {wire.parts.Part.TOKEN_TYPE_IDS: types.astype(np.int32)} if types.any() else {}
        )

    async def tokenize_details(self, texts: Sequence[str], **how: Any) -> list[list[Token]]:
        await self._work(texts, how)
        return [
            [Token(ord(character) % 100, character, False, at, at + 1) for at, character in enumerate(text)]
            for text in texts
        ]

    async def shorten(self, texts: Sequence[str], **how: Any) -> Sequence[str]:
        """A request without long texts is not asked for."""
        if max(map(len, texts)) <= shortening.LONG_TEXT_CHARS:
            return texts
        await self._work(texts, how)
        limit = how["max_tokens"] + 1
        kept = slice(-limit, None) if how["truncation"] is Truncation.LEFT else slice(limit)
        return [text[kept] if len(text) > shortening.LONG_TEXT_CHARS else text for text in texts]

    async def decode(self, token_ids: Sequence[Sequence[int]], **how: Any) -> list[str]:
        await self._work(tuple(map(str, token_ids)), how)
        for index, ids in enumerate(token_ids):
            if not all(0 <= each < self.vocab_size for each in ids):
                raise TextRefused(TextRefusal.OUT_OF_VOCABULARY, index)
        return [" ".join(map(str, ids)) for ids in token_ids]

    async def render(self, chats: Sequence[Chat], **how: Any) -> list[str]:
        await self._work(chats, how)
        return ["".join(message["content"] for message in json.loads(chat.messages)) for chat in chats]

    async def _work(self, what: Sequence[Any], how: dict[str, Any]) -> None:
        self.asked.append((what, how))
        self.at_work()
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error


@dataclass
class Managers:
    """Rows that say their sequence's length, or `rows`, one for each of its tokens where those are asked for; scores
    are the first numbers of the rows, and sparse rows one number of each. Waits for `gate` where there is one."""

    error: Exception | None = None
    rows: np.ndarray[Any, np.dtype[np.float32]] | None = None  # [sequences, any]
    token_rows: np.ndarray[Any, np.dtype[np.float32]] | None = None  # [tokens, any], instead of those
    num_labels: int = 1
    has_joined: bool = False
    gate: asyncio.Event | None = None
    submitted: list[Submission] = field(default_factory=list)
    arrivals: "asyncio.Queue[Submission]" = field(default_factory=asyncio.Queue)

    async def submit(self, submission: Submission) -> RequestResults:
        self.submitted.append(submission)
        self.arrivals.put_nowait(submission)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        results = {kind: self._rows(kind, submission) for kind in submission.outputs}
        return RequestResults(results, 0.0, 0.0, self.has_joined)

    def _rows(self, kind: OutputKind, submission: Submission) -> Rows:
        rows = self.rows
        if rows is None:
            rows = np.repeat(np.array(submission.seqlens, np.float32)[:, None], DIMENSIONS, axis=1)
        offsets = np.cumsum([0, *submission.seqlens], dtype=np.int32)
        of_tokens = np.repeat(rows, submission.seqlens, axis=0) if self.token_rows is None else self.token_rows
        match kind:
            case OutputKind.POOLED:
                return Rows(rows)
            case OutputKind.LOGITS:
                return Rows(rows[:, : self.num_labels])
            case OutputKind.TOKEN_LOGITS:
                return Rows(of_tokens[:, : self.num_labels], offsets)
            case OutputKind.SPARSE:
                numbers = np.arange(len(rows), dtype=np.float32)
                return Rows(np.stack([numbers, rows[:, 0]], axis=1), np.arange(len(rows) + 1, dtype=np.int32))
            case _:
                return Rows(of_tokens, offsets)


async def metrics_text() -> str:
    return "metrics of the whole server\n"


def all_routes(parts: Sequence[Part] | None = None, **access: bool) -> list[Route]:
    """Those of a frontend with these parts of features; by default with all features off."""
    own = own_routes(metrics_text, **{"needs_key": False, "metrics_auth": False, **access})
    parts = [Off(feature) for feature in FEATURES] if parts is None else parts
    return [*ROUTES, *PLAIN_ROUTES, *own, *(route for part in parts for route in part.routes)]


class Edge:
    """A frontend without its process. Must be made inside a running event loop."""

    def __init__(
        self,
        *,
        max_bytes: int = 1000,
        max_requests: int = 10,
        max_held_bytes: int = 1 << 20,
        max_wait: float = 1,
        is_loaded: bool = True,
        loaded: Json | None = None,
        hosts: Hosts | None = None,
        keys: Sequence[ApiKey] = (),
        metrics_auth: bool = False,
        has_documents_in_objects: bool = True,
        url_prefix: str = "",
        compress_answers: bool = False,
        parts: Mapping[str, Part] = MappingProxyType({}),
    ) -> None:
        """Features are off, but for those of which a part is given, by its name."""
        loaded = loaded or ready_state()
        num_models = len(loaded["models"])
        self.page = Page.create(num_frontends=1, num_managers=1, num_models=num_models, num_keys=max(1, len(keys)))
        self.page.engines_ready[:] = 1
        self.metrics = Recorder()
        self.state = ModelsState(self.page)
        if is_loaded:
            self.state.update(loaded)
        self.tokenizers = Tokenizers()
        self.managers = Managers()
        self.admission = Admission(
            self.page,
            frontend=0,
            budgets=WaitBudgets(max_wait, 10),
            max_requests=max_requests,
            max_held_bytes=max_held_bytes,
            keys=keys,
        )
        self.pipeline = Pipeline(
            self.admission, cast(TokenizerPool, self.tokenizers), cast(BatchManagers, self.managers)
        )
        are_several = self.admission.are_keys_several
        self.shared = SharedByRequests(
            state=self.state,
            admission=self.admission,
            pipeline=self.pipeline,
            bodies=RequestBodies(max_bytes=max_bytes, max_total_bytes=4 * max_bytes, are_keys_several=are_several),
            keys=Keys(keys, metrics_auth=metrics_auth),
            finished=RequestMetrics(self.metrics).record,
            max_items=4,
        )
        self.parts = [parts.get(feature.name) or Off(feature) for feature in FEATURES if feature.frontend]
        self.app = App(
            self.shared,
            all_routes(self.parts, needs_key=bool(keys), metrics_auth=metrics_auth),
            has_documents_in_objects=has_documents_in_objects,
            compress_answers=compress_answers,
            hosts=hosts or Hosts(None),
            url_prefix=url_prefix,
        )

    def request(self, receive: Receive, headers: Mapping[str, str] | None = None, **changes: Any) -> HttpRequest:
        """A request for a route of no use, whose body comes from `receive`."""
        given = {name.encode(): value.encode() for name, value in (headers or {}).items()}
        opened, route = OpenRequest(self.admission.requests), ROUTES[0]
        fields: dict[str, Any] = {"state": self.state, "max_items": 4, "trace": Trace("POST"), "shared": self.shared}
        fields |= {"error_shape": openai_error, "context": RequestContext(), "route": route, "path_values": {}}
        fields |= {"scope": {}, "receive": TimedReceive(receive, opened, is_whole=False), "send": receive}
        fields |= {"headers": given, "open": opened, "decoder": BodyDecoder()}
        return HttpRequest(**{**fields, **changes})

    def change(self, **shared: Any) -> None:
        """Other objects than an edge has by itself; before the first request."""
        self.shared = self.app._shared = replace(self.shared, **shared)


@contextlib.contextmanager
def worked_on(edge: Edge, key: str = "") -> Iterator[None]:
    """Another request of the key takes a place."""
    with OpenRequest(edge.admission.requests) as other:
        other.let_in(key)
        yield


@dataclass(frozen=True, slots=True)
class Called:
    """What an ASGI application answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> Any:
        """The part that an OpenAI client reads; all of its keys must be there."""
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


def scope_of(method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """The head of a request as ASGI has it."""
    path, _, query = path.partition("?")
    named = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": named}
    scope |= {"query_string": query.encode(), "root_path": "", "http_version": "1.1", "scheme": "http"}
    return {**scope, "server": ("test", 80)}


async def call(
    app: ASGIApp, method: str, path: str, body: bytes | Iterable[bytes] = b"", headers: dict[str, str] | None = None
) -> Called:
    """One request to an ASGI application. A body in several pieces comes as several messages. Status 0 is no answer."""
    pieces = aiter_of([body] if isinstance(body, bytes) else body)
    sent: list[Message] = []

    async def receive() -> Message:
        return await anext(pieces, {"type": "http.disconnect"})

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope_of(method, path, headers or {}), receive, send)
    if not sent:  # the client has left
        return Called(0, {}, b"")
    start, *rest = sent
    answered = {name.decode(): value.decode() for name, value in start["headers"]}
    assert len(answered) == len(start["headers"]), "a header stands there twice"
    return Called(start["status"], answered, b"".join(bytes(message.get("body", b"")) for message in rest))


def answered(
    method: str,
    path: str,
    body: bytes | Iterable[bytes] | dict[str, Any] = b"",
    headers: Mapping[str, str] | None = None,
    *,
    before: Callable[[Edge], object] = lambda edge: None,
    look: Callable[[Edge], object] = lambda edge: None,
    **settings: Any,
) -> Called:
    """What an edge of its own with these settings answers. `before` sees the edge first, and `look` afterwards."""

    async def run() -> Called:
        edge = Edge(**settings)
        before(edge)
        payload = json.dumps(body).encode() if isinstance(body, dict) else body
        called = await call(edge.app, method, path, payload, dict(headers or {}))
        look(edge)
        return called

    return asyncio.run(run())


async def aiter_of(pieces: Iterable[bytes]) -> AsyncIterator[Message]:
    """The pieces of a body as a server hands them on."""
    waiting = list(pieces)
    while waiting:
        piece = waiting.pop(0)
        yield {"type": "http.request", "body": piece, "more_body": bool(waiting)}

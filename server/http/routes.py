"""The routes that say how the server is and what it serves: health, models, load, metrics, and the pages on its API."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import msgspec

from embedline import __version__
from engine.model.tasks import Task
from engine.types import OutputKind
from server.dialects.answers import (
    METRICS_TYPE,
    Answer,
    json_answer,
    not_ready_answer,
    openai_error,
    retry_header,
    text_answer,
)
from server.dialects.route import OBJECT, TEXT, Call, Response, Route
from server.feature import loaded
from server.http.request import HttpRequest
from server.requests.errors import ERRORS, RETRY_AFTER, ModelNotFound, NotReady
from server.requests.models import ModelsState, ServedModel
from server.requests.prompts import SCORING, by_input_type

MetricsSource = Callable[[], Awaitable[str]]  # Prometheus's text format; raises TimeoutError

_RETRY = retry_header(ERRORS[NotReady].retry_after)
_PAGES = "server.http.openapi:ApiPages"
_NO_MODEL = "no model has that name"
_OF_A_MODEL = "Of the whole server, or of one of its models."
_MODEL_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "Model"}
_MODEL = {"name": "model", "in": "query", "required": False, "schema": _MODEL_SCHEMA}
_TEI_POOLING = {"last": "last_token"}  # its name for it
_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "title": "Name"}}


def own_routes(metrics: MetricsSource, *, needs_key: bool, metrics_auth: bool) -> list[Route]:
    """The routes of a server, whatever dialects and features it has. They check no key; the OpenAPI page says where one
    is needed."""
    has_started = False

    async def startupz(call: Call) -> Answer:
        nonlocal has_started
        found = text_answer("ok") if has_started else _readiness(call.state, None)
        has_started = found.status == 200
        return found

    async def metrics_page(call: Call) -> Answer:
        try:
            return text_answer(await metrics(), kind=METRICS_TYPE)
        except TimeoutError:
            return text_answer("the supervisor does not answer", 503, [retry_header(RETRY_AFTER["no_metrics"])])

    own = [
        _route("/livez", _livez, "livez_livez_get", "Whether this process answers", TEXT),
        _route(
            "/startupz", startupz, "startupz_startupz_get", "Whether every model has been ready once", TEXT,
            description="For an orchestrator, which asks the other two only after this one was 200.",
        ),
        *_READINESS,
        *_MODELS,
        _of_a_model("/load", _load, "load_load_get", "How much there is to do, for balancers", OBJECT),
        _route("/info", _info, "info_info_get", "What is served, by which engine, and why", OBJECT),
        _route(
            "/metrics", metrics_page, "metrics_page_metrics_get", "Prometheus metrics of the whole server", TEXT,
            more={503: Response("The supervisor does not answer", TEXT)},
        ),
    ]  # fmt: skip
    return [*own, *_page_routes(own, needs_key=needs_key, metrics_auth=metrics_auth)]


def _page_routes(own: list[Route], *, needs_key: bool, metrics_auth: bool) -> list[Route]:
    """The pages on the API. What makes them takes long to import, so that waits until somebody asks for one."""
    pages: Any = None
    making = asyncio.Lock()  # one import, however many ask

    async def made(state: ModelsState) -> Any:
        nonlocal pages
        async with making:
            if pages is None:
                kind = await asyncio.to_thread(loaded, _PAGES)  # half a second, in which other requests would wait
                pages = kind(state, own, needs_key=needs_key, metrics_auth=metrics_auth)
        return pages

    async def schema(call: HttpRequest) -> Answer:
        body = (await made(call.state)).schema()
        if prefix := call.place.prefix if call.place else "":
            body = b'{"servers":%b,%b' % (msgspec.json.encode([{"url": prefix}]), body[1:])
        return json_answer(body)

    async def page(call: HttpRequest) -> Answer:
        of_server = await made(call.state)
        found: Answer = await of_server.page(call.route.path, prefix=call.place.prefix if call.place else "")
        return found

    answers = {"/openapi.json": schema, "/api-doc/openapi.json": schema}  # the second is where TEI has it
    answers |= dict.fromkeys(("/docs", "/docs/oauth2-redirect", "/redoc"), page)
    return [
        Route(method="GET", path=path, answer=answer, error_shape=openai_error, summary="A page", is_listed=False)
        for path, answer in answers.items()
    ]


def _route(
    path: str,
    answer: Callable[[Any], Awaitable[Answer]],
    operation_id: str,
    summary: str,
    content: Any,
    *,
    more: dict[int, Response] | None = None,
    **documented: Any,
) -> Route:
    """A route by GET that answers 200 with this content."""
    return Route(
        method="GET",
        path=path,
        answer=answer,
        error_shape=openai_error,
        operation_id=operation_id,
        summary=summary,
        responses={200: Response("Successful Response", content), **(more or {})},
        **documented,
    )


def _of_a_model(path: str, answer: Callable[[Any], Awaitable[Answer]], name: str, summary: str, content: Any) -> Route:
    """A route that tells how the whole server is, or the model that a request names."""
    unready = {404: Response("The server has no such model", content), 503: Response("Not ready", content)}
    return _route(path, answer, name, summary, content, more=unready, description=_OF_A_MODEL, parameters=(_MODEL,))


def _asked_model(call: HttpRequest) -> str | None:
    return dict(call.query()).get("model")


def _readiness(state: ModelsState, model: str | None) -> Answer:
    """Of the whole server, or of one of its models."""
    if model is not None and not state.has(model):
        return text_answer(_NO_MODEL, 404)
    reason = state.why_not_ready() if model is None else state.why_model_not_ready(model)
    return text_answer("ok") if reason is None else not_ready_answer(reason)


async def _livez(call: Call) -> Answer:
    return text_answer("ok")


async def _readyz(call: HttpRequest) -> Answer:
    return _readiness(call.state, _asked_model(call))


async def _health(call: HttpRequest) -> Answer:
    """What /readyz says, in JSON."""
    status, headers, reason = _readiness(call.state, _asked_model(call))
    content: dict[str, Any] = {"status": bytes(reason).decode(), "unix": int(time.time())}
    if status == 503:
        content |= {"error": content["status"], "error_type": "Unhealthy"}  # TEI's
    return json_answer(content, *headers[1:], status=status)


async def _load(call: HttpRequest) -> Answer:
    model = _asked_model(call)
    if model is not None and not call.state.has(model):
        return json_answer({"ready": False, "reason": _NO_MODEL}, status=404)
    report = call.state.load(model)
    headers = [(b"cache-control", b"no-store"), *(() if report.ready else (_RETRY,))]
    return json_answer(asdict(report), *headers, status=200 if report.ready else 503)


async def _info(call: Call) -> Answer:
    return json_answer(info(call.state))


async def _models(call: Call) -> Answer:
    return json_answer({"object": "list", "data": model_cards(call.state)})


async def _infinity_models(call: Call) -> Answer:
    cards = [card | {"owned_by": "infinity"} for card in model_cards(call.state)]
    return json_answer({"object": "list", "data": cards})


async def _model_card(call: HttpRequest) -> Answer:
    own = call.state.own_name(call.path_values["name"])
    card = next((card for card in model_cards(call.state) if card["id"] == own), None)
    if card is None:
        raise ModelNotFound("no model has that name; GET /v1/models lists them", param="model")
    return json_answer(card)


def info(state: ModelsState) -> dict[str, Any]:
    """TEI's fields are in core/src/lib.rs and router/src/lib.rs (Info). Ours are `ready`, `models`, `fingerprint`,
    `task`, `outputs`, `labels`, `prompts`, `default_prompt`, `input_types`, `topology` and the other limits."""
    models = state.models.models if state.models else []
    return {
        **(_of_model(models[0].facts) | _prompts(models[0]) if models else {}),
        **state.newest.get("limits", {}),
        "version": __version__,
        "sha": None,
        "docker_label": None,
        "ready": state.why_not_ready() is None,
        "models": [_with_names(model) for model in models],
    }


def model_cards(state: ModelsState) -> list[dict[str, Any]]:
    """The served models and their adapters as OpenAI lists them, with more that other servers say."""
    served = {model.name: model for model in state.models.models} if state.models else {}
    return [
        {
            "id": name,
            "object": "model",
            "created": served[name].facts["loaded_at"] if name in served else 0,
            "owned_by": "embedline",
            "root": served[name].facts["model_id"] if name in served else name,  # vLLM's, as the next two
            "parent": state.parents.get(name),
            "permission": [],
            "ready": state.why_model_not_ready(name) is None,
            "stats": _stats(state, name),
            **(_facts(served[name]) if name in served else {}),
        }
        for name in (*state.names, *state.parents)
    ]


def _facts(model: ServedModel) -> dict[str, Any]:
    return {
        "fingerprint": model.facts["fingerprint"]["id"],
        "dimensions": model.default_dimensions,
        "max_dimensions": model.dimensions,
        "max_model_len": model.max_seqlen,  # as vLLM calls it
        "max_input_length": model.max_seqlen,
        "tasks": _tasks(model),
        "outputs": output_names(model.outputs),
        **_prompts(model),
        "prompts": sorted(model.prompts),
        "dtype": model.facts["info"]["dtype"],
        "backend": model.facts["info"]["engine"],  # as Infinity calls it, and what follows
        "capabilities": _tasks(model),
    }


def _stats(state: ModelsState, name: str) -> dict[str, float]:
    """Infinity's numbers, counted in tokens: a `queue_fraction` of 1 or more means that a request gets 429."""
    queue = state.queue_of(name)
    return {
        "queue_fraction": round(queue.wait_seconds / queue.max_wait_seconds, 3) if queue.max_wait_seconds else 0.0,
        "queue_absolute": queue.waiting_tokens,
        "results_pending": queue.computing_tokens,
        "batch_size": queue.max_batch_tokens,
    }


def _tasks(model: ServedModel) -> list[str]:
    """The tasks of a model: what it is for, and what else it gives."""
    beside = {OutputKind.SPARSE: Task.SPARSE, OutputKind.MULTI_VECTOR: Task.LATE_INTERACTION}
    return list(dict.fromkeys((model.task, *(task for kind, task in beside.items() if kind in model.outputs))))


def _prompts(model: ServedModel) -> dict[str, Any]:
    """The prompts by name, and which of them is put before texts of which a request says nothing, or their side."""
    sides = {} if model.task in SCORING else by_input_type(model)
    return {"prompts": model.prompts, "default_prompt": model.default_prompt, "input_types": sides}


def _with_names(model: ServedModel) -> dict[str, Any]:
    """What is known of the model, with names instead of the numbers that processes send each other."""
    facts = model.facts
    ranges = facts.get("int8_ranges")
    named = {"truncation": model.truncation.name.lower(), "int8_ranges": ranges and ranges["source"]}
    named |= {"parent": model.parent, "loras": [lora["name"] for lora in facts.get("loras", ())]}
    return {**facts, "info": {**facts["info"], "outputs": output_names(model.outputs)}, **named, **_prompts(model)}


def output_names(outputs: OutputKind) -> list[str]:
    """The name of each kind, in lower case."""
    return [kind.name.lower() for kind in outputs if kind.name]


def _of_model(model: dict[str, Any]) -> dict[str, Any]:
    """The part of the page that describes the first model."""
    known = model["info"]
    return {
        "model_id": model["model_id"],
        "model_sha": model["revision"] or None,
        "model_dtype": known["dtype"],
        "fingerprint": model["fingerprint"]["id"],
        "served_model_name": known["name"],
        "model_type": _model_type(model),
        "max_input_length": known["max_seqlen"],
        "task": model.get("task", Task.EMBED),
        "outputs": output_names(OutputKind(known["outputs"])),
        "labels": list(model.get("labels", ())),
    }


def _model_type(model: dict[str, Any]) -> dict[str, Any]:
    """TEI's name for the model's type. A task that TEI does not know is a classifier if it has labels, else an
    embedding model."""
    task, labels = Task(model.get("task", Task.EMBED)), model.get("labels", ())
    if task not in SCORING:
        pooling = "splade" if task is Task.SPARSE else model["info"]["pooling"]
        return {"embedding": {"pooling": _TEI_POOLING.get(pooling, pooling)}}
    return {
        "reranker" if task is Task.RERANK else "classifier": {
            "id2label": {str(number): label for number, label in enumerate(labels)},
            "label2id": {label: number for number, label in enumerate(labels)},
        }
    }


_READINESS = (
    _of_a_model("/readyz", _readyz, "readyz_readyz_get", "Whether a request sent now would be computed", TEXT),
    _of_a_model("/", _readyz, "readyz__get", "The same as /readyz, as TEI has it too", TEXT),
    _of_a_model("/ping", _readyz, "readyz_ping_get", "The same as /readyz, as SageMaker names it", TEXT),
    _route("/-/healthz", _readyz, "", "The same as /readyz, as Ray Serve's proxies ask", TEXT, is_listed=False),
    _of_a_model(
        "/health", _health, "health_health_get", "The same as /readyz in JSON, as Infinity and TEI have it", OBJECT,
    ),
)  # fmt: skip
_MODELS = (
    _route("/v1/models", _models, "models_v1_models_get", "The served models, as OpenAI lists them", OBJECT),
    _route(
        "/models", _infinity_models, "infinity_models_models_get", "The same in Infinity's words", OBJECT,
        description="Infinity's client takes no other owner.",
    ),
    _route(
        "/v1/models/{name:path}", _model_card, "model_card_v1_models__name__get",
        "The one that a request means by this name", OBJECT, parameters=(_NAME,), errors=(ModelNotFound,),
    ),
)  # fmt: skip

"""Readiness of each model: /v1/models, /readyz?model=, metrics."""

import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.http.app import App
from server.metrics.gauges import ModelGauges, ServerGauges
from server.metrics.registry import Registry
from server.requests.admission import expected_wait
from server.requests.errors import ModelNotFound, NotReady
from server.requests.models import ModelsState
from tests.server.edge import Edge, call, ready_state
from wire.page import Page

pytestmark = pytest.mark.holds("Readiness")


def state_of(page: Page, **changes: Any) -> ModelsState:
    """Two models are served, and the first has been loaded."""
    state = ModelsState(page)
    state.update(ready_state(names=["the-model", "the-other"], ready=False, **changes))
    return state


@pytest.fixture
def page() -> Page:
    page = Page.create(num_frontends=1, num_managers=2, num_models=2)
    page.engines_ready[1, 0] = 1
    return page


def test_one_of_two(page: Page) -> None:
    state = state_of(page)
    assert state.why_not_ready() is not None
    assert state.why_model_not_ready("the-model") is None
    assert state.why_model_not_ready("the-other") == "no engine for the model is ready"

    page.engines_ready[0, 1] = 1
    assert state.why_model_not_ready("the-other") is None
    page.engines_ready[1, 0] = 0  # its engine has died
    assert state.why_model_not_ready("the-model") == "no engine for the model is ready"
    state.draining = True
    assert state.why_model_not_ready("the-other") == "the server is stopping"


async def test_what_is_loading_is_listed_and_not_ready(page: Page) -> None:
    app = app_of(state_of(page))

    (loaded, loading) = json.loads((await call(app, "GET", "/v1/models")).body)["data"]
    statuses = [
        (await call(app, "GET", f"/readyz?model={name}")).status for name in ("the-model", "the-other", "nobody")
    ]

    assert (loaded["id"], loaded["ready"], loaded["dimensions"]) == ("the-model", True, 8)
    assert loading.pop("stats")["queue_absolute"] == 0
    assert loading.items() >= {"id": "the-other", "created": 0, "owned_by": "embedline", "ready": False}.items()
    assert "dimensions" not in loading
    assert statuses == [200, 503, 404]
    assert (await call(app, "GET", "/readyz")).status == 503


@pytest.mark.parametrize(
    ("names", "is_strict", "name", "own"),
    [
        (["org/the-model"], False, "org/the-model", "org/the-model"),
        (["org/the-model"], False, "Org/The-Model", "org/the-model"),  # one model takes any name
        (["org/the-model"], False, "text-embedding-3-small", "org/the-model"),
        (["org/the-model"], True, "org/the-model:query", "org/the-model"),
        (["org/the-model"], True, "text-embedding-3-small", None),
        (["org/the-model", "the-other"], False, "the-other:latest", "the-other"),
        (["org/the-model", "the-other"], False, "The-Other", None),
        (["org/the-model", "the-other"], False, "nobody", None),
    ],
)
async def test_a_model_has_the_names_that_requests_may_call_it(
    page: Page, names: list[str], is_strict: bool, name: str, own: str | None
) -> None:
    """The same that POST takes; a model that is loading has its names too."""
    state = ModelsState(page, strict_model_name=is_strict)
    loaded = ready_state(names=names)
    loaded["models"][0]["info"]["name"] = names[0]
    app = app_of(state)
    for newest in (ready_state(names=names, models=[]), loaded):
        state.update(newest)
        card = await call(app, "GET", f"/v1/models/{name}")
        assert (card.status, json.loads(card.body).get("id")) == (404 if own is None else 200, own)
    assert own_name_of_post(state, name) == own


def own_name_of_post(state: ModelsState, name: str) -> str | None:
    try:
        return state.models_or_not_ready().choose(name, with_prompt=True).name
    except NotReady:
        return "the-other"
    except ModelNotFound:
        return None


def app_of(state: ModelsState) -> App:
    edge = Edge()
    edge.change(state=state)
    return edge.app


def test_metrics(page: Page) -> None:
    infos: list[dict[str, Any]] = [
        {
            "name": "the-model",
            "engine": "transformers",
            "dtype": "float32",
            "is_padded": True,
            "num_fallback_products": 0,
        },
        {"name": "the-other", "engine": "fused", "dtype": "fp8", "is_padded": False, "num_fallback_products": 5},
    ]
    entries = [{"info": info, "devices": ["cpu"], "revision": None} for info in infos]
    names = [info["name"] for info in infos]
    gauges = ServerGauges(page, names, is_ready=lambda: False, expected_wait=expected_wait)
    registry = Registry([gauges, ModelGauges(lambda: entries)])
    samples = {
        family.name: {(*sample.labels.values(),): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(registry.text())
    }

    assert samples["embedline_ready"] == {(): 0}
    assert samples["embedline_model_ready"] == {("the-model",): 1, ("the-other",): 0}
    assert samples["embedline_model_padded"] == {("transformers", "the-model"): 1, ("fused", "the-other"): 0}
    assert samples["embedline_fp8_fallback_products"] == {("transformers", "the-model"): 0, ("fused", "the-other"): 5}

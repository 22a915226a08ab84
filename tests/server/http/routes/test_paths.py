"""Other spellings of a route's path lead to the route, for every method, and never past the check of keys."""

import json
from typing import Any

import pytest

from server.http.paths import Paths, Place
from server.requests.models import ModelTable
from server.settings.api_keys import ApiKey, digest
from tests.server.edge import Called, Edge, answered, call, one_model, ready_state, served_model

PATHS = Paths({"/", "/health", "/v1/embeddings", "/embeddings", "/predict", "/v1/models", "/rerank", "/v1/rerank"})
BODY = b'{"input":["one","three"]}'


@pytest.mark.holds("Other paths")
@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/predict", Place("/predict")),
        ("/predict/", Place("/predict")),
        ("/v1/predict", Place("/predict")),
        ("/models", Place("/v1/models")),
        ("/v1/rerank", Place("/v1/rerank")),
        ("/environments/production/sync/v1/embeddings", Place("/v1/embeddings", "/environments/production/sync")),
        ("/deployment/abc123/sync/health", Place("/health", "/deployment/abc123/sync")),
        ("/production/sync/models/", Place("/v1/models", "/production/sync")),
        ("/development/sync", Place("/", "/development/sync")),
        ("/sync/", Place("/", "/sync")),
        ("/sync/v1/predict", Place("/predict", "/sync")),
        ("/v1/endpoints/12/deployedModels/345:predict", Place("/vertex")),
        ("/v1/endpoints/12/deployedModels/345", Place("/health")),
        ("/openai/deployments/some-model/embeddings", Place("/embeddings", "", "some-model")),
        ("/openai/deployments/org/some-model/embeddings", Place("/embeddings", "", "org/some-model")),
        ("/openai/v1/embeddings", Place("/v1/embeddings")),
        ("/openai/models", Place("/v1/models")),
        ("/sync/openai/deployments/m/embeddings", Place("/embeddings", "/sync", "m")),
    ],
)
def test_another_spelling_leads_to_the_route(path: str, place: Place) -> None:
    assert PATHS.find(path) == place


@pytest.mark.parametrize(
    "path",
    [
        "",
        *("//predict", "/predict//", "/V1/predict", "/v1", "/v1//predict", "/v2/predict", "/v1/v1/predict", "/openai"),
        *("/syncpredict", "/environments/sync/predict", "/environments/a/b/sync/predict", "/production/predict"),
        *("/v1/endpoints/12/deployedModels/345:explain", "/openai/deployments/embeddings"),
    ],
)
def test_no_other_path_does(path: str) -> None:
    assert PATHS.find(path).path not in ("/predict", "/embeddings", "/v1/embeddings", "/")


@pytest.mark.holds("Other paths")
def test_a_prefix_of_ones_own() -> None:
    paths = Paths({"/", "/predict"}, url_prefix="/team/embed")

    assert paths.find("/team/embed/predict") == Place("/predict", "/team/embed")
    assert paths.find("/team/embed/v1/predict/") == Place("/predict", "/team/embed")
    assert paths.find("/team/embed") == paths.find("/team/embed/") == Place("/", "/team/embed")
    assert paths.find("/team/embed/sync/predict") == Place("/predict", "/team/embed/sync")
    assert paths.find("/predict") == Place("/predict")
    assert paths.find("/team/embedpredict").path == "/team/embedpredict"


def ask(method: str, path: str, body: bytes = BODY, **how: Any) -> Called:
    return answered(method, path, body, **how)


@pytest.mark.holds("Other paths")
@pytest.mark.parametrize(
    "path", ["/sync/v1/embeddings", "/environments/production/sync/embeddings/", "/openai/deployments/m/embeddings"]
)
def test_post_routes(path: str) -> None:
    called = ask("POST", path + "?api-version=2024-10-21")

    assert called.status == 200
    assert len(json.loads(called.body)["data"]) == 2
    assert ask("GET", path).headers["allow"] == "POST"


@pytest.mark.holds("Other paths")
@pytest.mark.parametrize("path", ["/sync/info", "/v1/info", "/info/", "/deployment/a/sync/v1/info/"])
def test_get_routes(path: str) -> None:
    assert json.loads(ask("GET", path).body)["max_client_batch_size"] == 4
    assert ask("POST", path).status == 405


def test_the_page_under_a_prefix_finds_its_description_there() -> None:
    assert b"/sync/openapi.json" in ask("GET", "/sync/docs").body
    assert json.loads(ask("GET", "/sync/openapi.json").body)["info"]["title"] == "Embedline"


@pytest.mark.holds("Other paths")
def test_a_flag_names_a_prefix() -> None:
    assert ask("POST", "/team/v1/embeddings", url_prefix="/team").status == 200
    assert ask("GET", "/team/readyz", url_prefix="/team").status == 200
    assert ask("GET", "/team/readyz").status == 404


KEY = [ApiKey("team", digest(b"sesame"))]


@pytest.mark.holds("API keys", "Other paths")
@pytest.mark.parametrize("path", ["/sync/v1/embeddings", "/openai/deployments/m/embeddings", "/v1/predict", "/sync/no"])
def test_a_prefix_needs_the_key_too(path: str) -> None:
    assert ask("POST", path, keys=KEY).status == 401
    assert ask("POST", path, keys=KEY, headers={"api-key": "wrong"}).status == 401
    assert ask("POST", path, keys=KEY, headers={"api-key": "sesame"}).status != 401


@pytest.mark.holds("API keys", "Other paths")
def test_health_is_open_by_every_name() -> None:
    assert [ask("GET", path, keys=KEY).status for path in ("/sync/health", "/v1/health", "/health/")] == [200] * 3
    assert ask("GET", "/sync/info", keys=KEY).status == 401


@pytest.mark.holds("Other paths")
def test_a_model_in_the_path_goes_before_one_in_the_body() -> None:
    models = ready_state()["models"]
    second = {**models[0], "info": {**models[0]["info"], "name": "org/second"}}
    two = ready_state(names=["the-model", "org/second"], models=[models[0], second])
    body = b'{"input":"a","model":"the-model"}'

    named = ask("POST", "/openai/deployments/org/second/embeddings", body, loaded=two)
    unknown = ask("POST", "/openai/deployments/none/embeddings", body, loaded=two)

    assert json.loads(named.body)["model"] == "org/second"
    assert (unknown.status, unknown.error()["code"]) == (404, "model_not_found")


def test_a_table_whose_model_the_path_names() -> None:
    two = ModelTable([served_model(), served_model(index=1, name="second")])

    assert two.named("second").choose("the-model").name == "second"
    assert two.choose("the-model").name == "the-model"
    assert one_model().named("whatever").choose(None).name == "the-model"


async def test_other_spellings_are_counted_under_the_routes_own_path() -> None:
    edge = Edge()
    await call(edge.app, "POST", "/sync/v1/embeddings", BODY)
    await call(edge.app, "GET", "/environments/x/sync/livez")
    routes = {count[1] for count in edge.metrics.drain()["counts"] if count[0] == "embedline_requests_total"}
    assert routes == {"/v1/embeddings", "/livez"}

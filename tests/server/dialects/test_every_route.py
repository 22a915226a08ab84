"""What every route does the same way, from the table of routes, so that one that is added later is walked too."""

import json
from typing import Any

import msgspec
import pytest

from engine.types import OutputKind
from server.dialects.route import RequestOptions
from server.dialects.table import ROUTES
from server.requests.errors import InvalidRequest, ModelNotFound, NotReady
from server.requests.models import ModelTable
from server.settings.api_keys import ApiKey, digest
from tests.server.edge import Called, answered, decoded, good_body, route_of, served_model, state_with_everything
from wire.vocabulary import RequestClass

ALL = OutputKind(sum(OutputKind))
PATHS = [route.path for route in ROUTES]
COMPUTE_NOTHING = {"/tokenize", "/decode", "/v1/tokenize", "/v1/detokenize", "/detokenize", "/api/show"}
OPTIONS = RequestOptions(request_class=RequestClass.BULK, deadline=12.5)


def asked(path: str, **settings: Any) -> Called:
    headers = {"authorization": "Bearer secret"} if settings.pop("has_key", False) else {}
    return answered("POST", path, good_body(path), headers, loaded=state_with_everything(), **settings)


@pytest.mark.holds("OpenAI's route", "TEI's routes")
@pytest.mark.parametrize("path", [path for path in PATHS if path != "/api/show"])  # which asks for nothing
def test_the_class_the_deadline_and_the_model(path: str) -> None:
    models = ModelTable([served_model(name="one", outputs=ALL), served_model(index=1, name="two", outputs=ALL)])

    request = decoded(path, OPTIONS, models, model="two")

    assert (request.request_class, request.deadline) == (RequestClass.BULK, 12.5)
    assert request.model is models.models[1]
    for others in ({}, {"model": "three-three"}):
        with pytest.raises(ModelNotFound) as refused:
            decoded(path, OPTIONS, models, **others)
        assert (refused.value.param or "").endswith("model")
        assert "three-three" not in refused.value.message


@pytest.mark.holds("Readiness")
@pytest.mark.parametrize("path", PATHS)
def test_before_the_model_is_loaded_no_body_is_read(path: str) -> None:
    called = answered("POST", path, [], is_loaded=False)  # reading would end as a client that left
    expected = route_of(path).error_shape(NotReady("the model is still loading"))
    assert (called.status, called.body) == (expected.status, expected.body)
    assert called.headers["retry-after"] == "2"


@pytest.mark.parametrize("path", PATHS)
def test_a_key_is_needed(path: str) -> None:
    keys = [ApiKey("one", digest(b"secret"))]
    refused = asked(path, keys=keys)
    shape = msgspec.json.decode(route_of(path).error_shape(NotReady("")).body)
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert json.loads(refused.body).keys() == shape.keys()
    assert asked(path, keys=keys, has_key=True).status == 200


@pytest.mark.parametrize("path", PATHS)
def test_work_is_counted_for_the_requests_key(path: str) -> None:
    keys = [ApiKey("one", digest(b"other")), ApiKey("two", digest(b"secret"))]
    seen: list[int] = []

    called = asked(
        path, keys=keys, has_key=True, look=lambda edge: seen.extend(one.key for one in edge.managers.submitted)
    )

    assert called.status == 200
    assert set(seen) <= {1}  # not of the first key, and not of none
    assert bool(seen) != (path in COMPUTE_NOTHING)


@pytest.mark.holds("Prompts", "OpenAI's route", "TEI's routes")
@pytest.mark.parametrize("path", [route.path for route in ROUTES if "prompt_name" in route.body.__struct_fields__])
def test_a_prompt_of_the_models_own_is_chosen_by_name(path: str) -> None:
    prompts = {"query": "Q: ", "passage": "P: "}
    models = ModelTable([served_model(outputs=ALL, default_prompt="D: ", facts={"prompts": prompts})])

    for name, prompt in ((None, "D: "), ("query", "Q: ")):
        assert decoded(path, models=models, input_type=None, prompt_name=name).prompt == prompt
    with pytest.raises(InvalidRequest, match=r"\(passage, query\)") as refused:
        decoded(path, models=models, prompt_name="nonsense")
    assert refused.value.param == "prompt_name"
    assert "nonsense" not in refused.value.message

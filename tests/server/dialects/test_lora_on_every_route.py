"""A LoRA adapter on every route: by its name, by its model's name and its own, and by SGLang's field."""

import json
from typing import Any

import numpy as np
import pytest

from engine.model.tasks import Task
from engine.types import OutputKind
from server.dialects.table import ROUTES
from server.requests.errors import InvalidRequest, ModelNotFound
from server.requests.models import ModelTable, ServedModel, served_models
from tests.server.edge import Called, Edge, answered, decoded, good_body, ready_state, state_with_everything
from wire.control import Json
from wire.parts import Part

PATHS = [route.path for route in ROUTES]
COMPUTE_NOTHING = {"/tokenize", "/decode", "/v1/tokenize", "/v1/detokenize", "/detokenize", "/api/show"}
WAYS: tuple[dict[str, Any], ...] = (
    {"model": "mail:latest"},
    {"model": "the-model:mail:latest"},
    {"model": "mail"},
    {"model": "the-model:mail"},
    {"lora_path": "mail"},
    {"lora_path": ["mail", "mail"]},
    {"model": "the-model", "lora_path": "mail"},
    {"model": "mail", "lora_path": "the-model:mail"},
)


NO_NAMES: tuple[dict[str, Any], ...] = ({}, {"model": "the-model"}, {"lora_path": None}, {"lora_path": []})


def lora(name: str, **changes: Any) -> Json:
    """An adapter as an entry of a STATE has it."""
    facts = {"name": name, "model_id": f"adapters/{name}", "fingerprint": {"id": f"of {name}"}, "prompts": {}}
    return {**facts, "default_prompt": "", "max_seqlen": 16, **changes}


def with_loras(loaded: Json, *loras: Json) -> Json:
    loaded["models"][0]["loras"] = list(loras or (lora("law"), lora("mail")))
    loaded["parents"] = {one["name"]: "the-model" for one in loaded["models"][0]["loras"]}
    return loaded


def asked(path: str, fields: Json, **settings: Any) -> Called:
    body = {name: value for name, value in json.loads(good_body(path)).items() if name != "model"}
    if path == "/vertex":
        body["instances"] = [one | fields for one in body["instances"]]
    else:
        body |= fields
    return answered("POST", path, body, loaded=with_loras(state_with_everything()), **settings)


def numbers(edge: Edge) -> set[int]:
    """The adapters of all sequences that the engine got."""
    every = [one.parts.get(Part.ADAPTERS, np.zeros(1, np.int32).data.cast("B")) for one in edge.managers.submitted]
    return {number for of_one in every for number in np.frombuffer(of_one, np.int32).tolist()}


@pytest.mark.holds("Adapters")
@pytest.mark.parametrize("fields", WAYS, ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_each_way_of_naming_it_gives_the_engine_its_number(path: str, fields: Json) -> None:
    seen: list[set[int]] = []
    called = asked(path, fields, look=lambda edge: seen.append(numbers(edge)))

    assert called.status == 200, called.body
    assert seen == [set() if path in COMPUTE_NOTHING else {2}]
    said = json.loads(called.body)
    if isinstance(said, dict) and isinstance(said.get("model"), str):
        assert said["model"] == "mail"


@pytest.mark.holds("Adapters")
@pytest.mark.parametrize("path", PATHS)
def test_without_a_name_it_is_the_model(path: str) -> None:
    for fields in NO_NAMES:
        seen: list[set[int]] = []
        assert asked(path, fields, look=lambda edge: seen.append(numbers(edge))).status == 200  # noqa: B023
        assert seen == [set() if path in COMPUTE_NOTHING else {0}]


@pytest.mark.holds("Adapters")
@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "post"}, 404, "model"),
        ({"model": "the-model:post"}, 404, "model"),
        ({"model": "mail:post"}, 404, "model"),
        ({"lora_path": "post"}, 404, "lora_path"),
        ({"lora_path": "the-model"}, 400, "lora_path"),
        ({"lora_path": ["law", "mail"]}, 400, "lora_path"),
        ({"lora_path": ["law", None]}, 400, "lora_path"),
        ({"lora_path": 7}, 400, "lora_path"),
        ({"model": "law", "lora_path": "mail"}, 400, "lora_path"),
        ({"model": "post", "lora_path": "mail"}, 404, "model"),
    ],
)
@pytest.mark.parametrize("path", PATHS)
def test_what_is_no_adapter_is_refused_and_never_the_models_rows(
    path: str, fields: Json, status: int, param: str
) -> None:
    models = ModelTable(served_models(with_loras(state_with_everything())["models"]))
    with pytest.raises((ModelNotFound, InvalidRequest)) as refused:
        decoded(path, models=models, **fields)
    assert (refused.value.param or "").endswith(param)
    assert (404 if isinstance(refused.value, ModelNotFound) else 400) == status
    assert "post" not in refused.value.message


@pytest.mark.holds("Adapters")
def test_ranking_by_embeddings_has_it_on_both_sides() -> None:
    seen: list[set[int]] = []
    loaded = with_loras(ready_state())
    body = {"model": "law", "query": "a", "documents": ["b", "c"]}
    called = answered("POST", "/rerank", body, loaded=loaded, look=lambda edge: seen.append(numbers(edge)))
    assert (called.status, seen) == (200, [{1}])


@pytest.mark.holds("Adapters")
def test_a_word_for_a_prompt_may_stand_behind_it() -> None:
    """Its own prompts count; without any it has its model's."""
    entry = with_loras(ready_state(), lora("law", prompts={"query": "Law: "}, default_prompt="L: "), lora("mail"))
    models = ModelTable(served_models(entry["models"]))
    for name, prompt in (
        ("law:query", "Law: "),
        ("the-model:law:query", "Law: "),
        ("the-model:law", "L: "),
        ("law:latest", "L: "),
        ("the-model:query", "Q: "),
        ("the-model:latest", ""),
    ):
        request = decoded("/v1/embeddings", models=models, model=name)
        assert (request.prompt, request.model.lora) == (prompt, 1 if "law" in name else 0), name


def names_of(models: list[ServedModel]) -> list[tuple[str, str | None, int, int]]:
    return [(one.name, one.parent, one.lora, one.index) for one in models]


def test_each_is_behind_its_model_and_has_its_index() -> None:
    two = with_loras(ready_state())["models"][0]
    other = {**ready_state()["models"][0], "index": 1}
    other["info"] = {**other["info"], "name": "other"}
    models = served_models([two, other])
    assert names_of(models) == [
        ("the-model", None, 0, 0),
        ("law", "the-model", 1, 0),
        ("mail", "the-model", 2, 0),
        ("other", None, 0, 1),
    ]
    assert models[2].facts["fingerprint"] == {"id": "of mail"}


def test_texts_are_cut_to_its_own_length() -> None:
    """Which may be shorter than its model's: the tokenizers know that one alone."""
    loaded = with_loras(ready_state(), lora("law", max_seqlen=9))
    (_, short) = served_models(loaded["models"])
    assert (short.max_seqlen, short.facts["info"]["max_seqlen"]) == (9, 9)
    for name, most in (("law", 9), ("the-model", None)):
        seen: list[Any] = []
        body = {"model": name, "input": "a"}
        answered(
            "POST",
            "/v1/embeddings",
            body,
            loaded=loaded,
            look=lambda edge: seen.extend(edge.tokenizers.asked),  # noqa: B023
        )
        assert [how["max_tokens"] for _, how in seen] == [most]


def test_scores_and_sparse_rows_of_an_adapter() -> None:
    """The kinds of output are its model's."""
    loaded = with_loras(state_with_everything())
    loaded["models"][0]["task"] = Task.SPARSE
    seen: list[set[int]] = []
    called = answered(
        "POST", "/embed_sparse", {"inputs": "a", "model": "law"}, loaded=loaded, look=lambda e: seen.append(numbers(e))
    )
    assert (called.status, seen) == (200, [{1}])
    assert OutputKind.SPARSE in served_models(loaded["models"])[1].outputs

"""Names that are almost a field of a route are refused with the right one, and no name that clients know is taken for
another."""

import json
import re
from typing import Any

import pytest

from server.dialects.reading.json_body import HARMLESS, KNOWN_FIELDS
from server.dialects.table import ROUTES
from server.requests.errors import InvalidRequest, RequestError
from tests.documents import ROOT, examples
from tests.server.edge import decoded, good_body, new_call

HOLDS = pytest.mark.holds("Fields of other dialects")
ROUTE = {route.path: route for route in ROUTES}
PASSED_OVER = {"user", "metadata", "model", "stream", "format", "template", "system", "service_tier", "extra_body"}


def refused(path: str, body: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        ROUTE[path].decode(new_call(), json.dumps(body).encode())
    return error.value


def names_of_clients() -> set[str]:
    """Of the bodies in the tests of real clients, and in the requests of the pages."""
    code = [file.read_text() for file in (ROOT / "tests" / "clients").rglob("*.*") if file.suffix in (".py", ".mjs")]
    code += [example.code for page in (ROOT / "docs").rglob("*.md") for example in examples(page.read_text())]
    bodies = [body for text in code for body in re.findall(r"(?:json=|-d '|--data '|body: )(\{.*?\})", text, re.DOTALL)]
    return {name for body in bodies for name in re.findall(r'"([A-Za-z_][\w-]+)":', body)}


@HOLDS
@pytest.mark.parametrize(
    "name", ["dimension", "dimensionss", "dimenxions", "dimesnions", "Dimensions", "dimen_sions", "dimen-sions"]
)
def test_a_name_that_is_almost_a_field_is_refused_with_the_right_one(name: str) -> None:
    error = refused("/v1/embeddings", {"input": "a", name: 64})

    assert error.message == "a field of the body is not known here; did you mean dimensions?"
    assert error.param == "dimensions"


@HOLDS
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"inputs": "a"}, "input"),
        ("/v1/embeddings", {"Input": "a"}, "input"),
        ("/embed_hybrid", {"inputs": "a", "output": ["dense"]}, "outputs"),  # which other routes pass over
        ("/embed", {"input": "a"}, "inputs"),
        ("/similarity", {**json.loads(good_body("/similarity")), "parameters": {"prompts": "a"}}, "parameters.prompt"),
        ("/v1/embeddings", {"input": ["a " * 20_000] * 4, "normalise": True}, "normalize"),
        ("/v1/embeddings", {"normalise": True, "input": ["a " * 20_000] * 4}, "normalize"),
    ],
)
def test_also_where_the_inputs_stand_and_in_large_bodies(path: str, body: dict[str, Any], param: str) -> None:
    assert refused(path, body).param == param


@HOLDS
@pytest.mark.parametrize(
    "more",
    [
        {"dimension": None},
        {"metadata": {"dimension": 3}},
        {"inputs": "b"},
        {"user": 'a "dimension": 3'},
        {"dim": 3},
        {"shapes": 1, "asdf": 2},
    ],
)
def test_what_changes_nothing_or_is_no_field_of_the_body_is_passed_over(more: dict[str, Any]) -> None:
    assert decoded("/v1/embeddings", **more)


@HOLDS
@pytest.mark.parametrize("path", sorted(ROUTE.keys() - {"/", "/invocations", "/vertex"}))
def test_no_name_that_clients_know_is_taken_for_another(path: str) -> None:
    for name in KNOWN_FIELDS.keys() | HARMLESS | PASSED_OVER | names_of_clients():
        refused = ""
        try:
            ROUTE[path].decode(new_call(), json.dumps({**json.loads(good_body(path)), name: "a"}).encode())
        except RequestError as error:
            refused = error.message
        assert "did you mean" not in refused, name


def test_many_unknown_names_cost_little() -> None:
    names: dict[str, Any] = {f"unknown{index}": 1 for index in range(100_000)}
    assert decoded("/v1/embeddings", **names)

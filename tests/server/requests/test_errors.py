"""One table for all errors, and one shape."""

import json

import pytest

from server.dialects.answers import openai_error
from server.dialects.tei import tei_error
from server.requests import errors
from server.requests.errors import RequestError


def every_error() -> list[type[RequestError]]:
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, RequestError) and value is not RequestError
    ]


def test_there_is_nothing_to_look_for_below_the_first_level() -> None:
    assert set(every_error()) == set(RequestError.__subclasses__())


@pytest.mark.holds("Errors come from one table and never repeat a user's text", "Errors")
@pytest.mark.parametrize("kind", every_error())
def test_each_error_has_a_status_and_openais_shape(kind: type[RequestError]) -> None:
    answer = openai_error(kind("what is wrong", param="input[3]"))

    assert 400 <= answer.status < 600
    shape = json.loads(bytes(answer.body))
    assert set(shape) == {"error", "message", "detail", "code", "type"}
    assert set(shape["error"]) == {"message", "type", "param", "code"}
    assert shape["error"]["message"] == "what is wrong"
    assert shape["error"]["param"] == "input[3]"
    assert isinstance(shape["error"]["type"], str)
    assert (shape["message"], shape["detail"]) == ("what is wrong",) * 2  # Cohere's and Voyage's clients read these,
    assert (shape["code"], shape["type"][0].isupper()) == (answer.status, True)  # and TEI's OpenAI clients these
    assert dict(answer.headers)[b"content-type"] == b"application/json"
    assert (b"retry-after" in dict(answer.headers)) == (kind in (errors.Overloaded, errors.NotReady))


@pytest.mark.parametrize("message", ["x must be left or right", "x must be true, false, NONE, START or END"])
def test_a_choice_of_words_is_one_of_them(message: str) -> None:
    assert errors.InvalidRequest(message).problem == "not_one_of"


@pytest.mark.holds("Errors")
def test_the_documented_statuses_and_teis_own_with_its_types() -> None:
    shapes = {kind.__name__: (openai_error(kind("")), tei_error(kind("x", param="inputs"))) for kind in every_error()}
    found = {
        name: (usual.status, tei.status, json.loads(bytes(tei.body))["error_type"])
        for name, (usual, tei) in shapes.items()
    }

    assert found == {
        "InvalidRequest": (400, 422, "Validation"),
        "EmptyInput": (400, 400, "Empty"),
        "MalformedBody": (400, 400, "Validation"),
        "NotTokenizable": (400, 422, "Tokenizer"),
        "UnsupportedTask": (400, 424, "Backend"),
        "Unauthorized": (401, 401, "Unauthorized"),
        "Forbidden": (403, 403, "Unauthorized"),
        "BodyTooSlow": (408, 408, "Validation"),
        "PayloadTooLarge": (413, 413, "Validation"),
        "UnsupportedMedia": (415, 415, "Validation"),
        "HeadTooLarge": (431, 431, "Validation"),
        "ModelNotFound": (404, 404, "Validation"),
        "NoSuchRoute": (404, 404, "Validation"),
        "NotFound": (404, 404, "Validation"),
        "Conflict": (409, 409, "Validation"),
        "WrongMethod": (405, 405, "Validation"),
        "Overloaded": (429, 429, "Overloaded"),
        "NotReady": (503, 503, "Unhealthy"),
        "DeadlineExceeded": (504, 504, "Overloaded"),
        "EngineFailed": (500, 424, "Backend"),
    }
    for name, (_, tei) in shapes.items():
        said = "`inputs` cannot be empty" if name == "EmptyInput" else "x"
        assert json.loads(bytes(tei.body)) == {"error": said, "error_type": found[name][2]}
    assert {name: usual for name, (usual, _, _) in found.items()} == {
        kind.__name__: row.status for kind, row in errors.ERRORS.items()
    }


def test_each_error_has_a_reason_of_its_own() -> None:
    assert len({row.reason for row in errors.ERRORS.values()}) == len(every_error())
    assert errors.InvalidRequest("").reason == "invalid"
    assert errors.InvalidRequest("", reason="batch_size").reason == "batch_size"


@pytest.mark.holds("Back-pressure")
@pytest.mark.parametrize(("seconds", "header"), [(0.0, b"1"), (0.2, b"1"), (1.0, b"1"), (1.01, b"2"), (120.0, b"120")])
def test_retry_after_is_whole_seconds_rounded_up(seconds: float, header: bytes) -> None:
    answer = openai_error(errors.Overloaded("busy", retry_after=seconds))
    assert dict(answer.headers)[b"retry-after"] == header


@pytest.mark.holds("Back-pressure")
def test_when_to_ask_again_is_of_the_reason_or_else_of_the_class() -> None:
    assert errors.Overloaded("busy").retry_after == 1.0
    assert errors.NotReady("loading").retry_after == 2.0
    assert errors.NotReady("no room", reason="jobs_full").retry_after == 10.0
    assert errors.NotReady("no room", reason="unread_answers").retry_after == 1.0
    assert errors.NotReady("no engine", retry_after=5.0, reason="jobs_full").retry_after == 5.0
    assert errors.stopping().retry_after == 1.0


def test_param_is_null_where_nothing_is_to_blame() -> None:
    assert json.loads(bytes(openai_error(errors.NotReady("loading")).body))["error"]["param"] is None

"""Servers of all kinds: the best form of answers that each one has is found, and kept for its base URL."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from embedline import Client, RequestFailed, RequestProcessingPreference
from embedline.client import answer as transport
from tests.embedline.client.stub import WIDTH, Seen, Step, as_json, http, raw, row_of, rows_of, stub, texts

ONE_AT_A_TIME = RequestProcessingPreference(batch_size=2, max_concurrent_requests=1)


def openai(items: Sequence[Any], form: str, **more: Any) -> bytes:
    """An answer as OpenAI's: base64 or floats, the last item first."""
    data = []
    for index, item in reversed(list(enumerate(items))):
        row = row_of(item)
        value = base64.b64encode(row.tobytes()).decode() if form == "base64" else row.tolist()
        data.append({"object": "embedding", "index": index, "embedding": value})
    usage = {"prompt_tokens": 2 * len(items), "total_tokens": 2 * len(items)}
    return as_json({"object": "list", "data": data, "model": "theirs", "usage": usage, **more})


def asked(seen: Seen) -> tuple[str, str]:
    return seen.path, seen.json()["encoding_format"]


def takes(*forms: str, path: str = "/v1/embeddings") -> Any:
    """A server that refuses other forms with 422 and other paths with 404."""

    def script(seen: Seen) -> list[Step]:
        if seen.path != path:
            return [as_json({"detail": "Not Found"}, 404)]
        form = seen.json()["encoding_format"]
        if form not in forms:
            return [as_json({"error": f"unknown variant `{form}`", "error_type": "Validation"}, 422)]
        return [openai(seen.texts, form)]

    return script


@pytest.mark.parametrize(
    ("script", "walk"),
    [
        (lambda seen: [raw(seen.texts)], [("/v1/embeddings", "bytes")]),
        (takes("float", "base64"), [("/v1/embeddings", "bytes"), ("/v1/embeddings", "base64")]),
        (takes("float"), [("/v1/embeddings", form) for form in ("bytes", "base64", "float")]),
        (
            takes("float", "base64", path="/embeddings"),
            [("/v1/embeddings", "bytes"), ("/embeddings", "bytes"), ("/embeddings", "base64")],
        ),
        (
            lambda seen: [openai(seen.texts, "float")],  # passes over what it does not know
            [("/v1/embeddings", form) for form in ("bytes", "base64", "float")],
        ),
        (
            lambda seen: [openai(seen.texts, "base64" if b"base64" in seen.body else "float")],
            [("/v1/embeddings", "bytes"), ("/v1/embeddings", "base64")],
        ),
    ],
    ids=["ours", "OpenAI", "floats only", "Infinity", "deaf", "half deaf"],
)
def test_the_best_form_is_found_and_kept(script: Any, walk: list[tuple[str, str]]) -> None:
    with stub(script) as server, Client(server.url, preference=ONE_AT_A_TIME) as client:
        answer = client.embed(texts(11))
        again = client.embed(texts(3))

    assert np.array_equal(answer.numpy(), rows_of(texts(11)))
    assert np.array_equal(again.numpy(), rows_of(texts(3)))
    found = [asked(seen) for seen in server.seen]
    assert found == walk + [walk[-1]] * (len(found) - len(walk))
    assert len(found) <= 6 + 2 + len(walk) - 1


@pytest.mark.parametrize("form", ["base64", "float"])
def test_json_is_read_without_orjson_too(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "loads", json.loads)
    with stub(takes(form)) as server, Client(server.url) as client:
        assert np.array_equal(client.embed(texts(11)).numpy(), rows_of(texts(11)))


def test_rows_without_a_shape_are_taken_by_their_length() -> None:
    """vLLM's bytes: the shape is in a header of another form, the body may come in chunks."""

    def script(seen: Seen) -> list[Step]:
        rows = rows_of(seen.texts).tobytes()
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (rows[:5], rows[5:])) + b"0\r\n\r\n"
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: application/octet-stream\r\n\r\n"
        return [head + chunks]

    with stub(script) as server, Client(server.url) as client:
        assert np.array_equal(client.embed(texts(6)).numpy(), rows_of(texts(6)))
        client.embed(texts(2))
    assert server.num_connections == 1


def test_raw_rows_in_chunks() -> None:
    def script(seen: Seen) -> list[Step]:
        head, _, body = raw(seen.texts).partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.startswith(b"content-length")]
        return [
            b"\r\n".join([*lines, b"transfer-encoding: chunked\r\n\r\n"]) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        ]

    with stub(script) as server, Client(server.url) as client:
        assert np.array_equal(client.embed(texts(6)).numpy(), rows_of(texts(6)))
        client.embed(texts(2))
    assert server.num_connections == 1


@pytest.mark.parametrize(("status", "words"), [(400, "input[1] must not be empty"), (422, "`inputs` cannot be empty")])
def test_a_wrong_input_keeps_its_own_error(status: int, words: str) -> None:
    """Every form is tried while none has worked; the error that is shown is the input's, not that of a guess."""

    def script(seen: Seen) -> list[Step]:
        if seen.json()["encoding_format"] == "bytes":
            return [as_json({"error": {"message": "Invalid value: 'bytes'", "param": "encoding_format"}}, 400)]
        return [as_json({"error": {"message": words}}, status)]

    with stub(script) as server, Client(server.url) as client, pytest.raises(RequestFailed) as failed:
        client.embed(["a", ""])
    assert words in str(failed.value).partition(";")[0]
    assert (failed.value.status, len(server.seen)) == (status, 3)


def test_a_server_that_takes_no_encoding_format_is_asked_without() -> None:
    def script(seen: Seen) -> list[Step]:
        if b"encoding_format" in seen.body:
            return [as_json({"detail": [{"type": "extra_forbidden", "loc": ["body", "encoding_format"]}]}, 422)]
        return [openai(seen.texts, "float")]

    with stub(script) as server, Client(server.url, preference=ONE_AT_A_TIME) as client:
        assert np.array_equal(client.embed(texts(3)).numpy(), rows_of(texts(3)))
        client.embed(texts(2))
    assert len(server.seen) == 4 + 2


@pytest.mark.parametrize(
    "answered",
    [
        lambda seen: as_json({"error": f"wrong key {seen.headers['authorization']}"}, 401),
        lambda seen: as_json({"error": {"message": f"{'x' * 280} {seen.headers['x-token']}"}}, 403),
        lambda seen: http(307, b"", location=f"http://elsewhere/{seen.headers['x-token']}/"),
        lambda seen: as_json({"error": seen.headers["authorization"]}),
    ],
)
def test_a_key_that_a_server_sends_back_is_not_shown(answered: Any) -> None:
    preference = RequestProcessingPreference(max_retries=0, extra_headers={"x-token": "tok-98765432"})
    with (
        stub(lambda seen: [answered(seen)]) as server,
        Client(server.url, api_key="sk-12345678", preference=preference) as client,
        pytest.raises(RequestFailed) as failed,
    ):
        client.embed("text")
    assert "***" in str(failed.value)
    assert not {"12345678", "9876"} & set(str(failed.value).replace("-", " ").split())


def test_a_model_that_is_not_there_keeps_its_own_error() -> None:
    with (
        stub(lambda _: [as_json({"error": {"message": "no such model"}}, 404)]) as server,
        Client(server.url) as client,
        pytest.raises(RequestFailed, match=r"HTTP 404: no such model; 2 attempts"),
    ):
        client.embed("text")


def test_once_a_form_has_worked_a_refusal_is_final() -> None:
    def script(seen: Seen) -> list[Step]:
        return [raw(seen.texts) if seen.number == 0 else as_json({"error": "empty"}, 422)]

    with stub(script) as server, Client(server.url) as client:
        client.embed("text")
        with pytest.raises(RequestFailed, match="HTTP 422: empty"):
            client.embed("")
    assert len(server.seen) == 2


@pytest.mark.parametrize(
    "refusal",
    [
        as_json({"error": "batch size 16 > maximum allowed batch size 4", "error_type": "Validation"}, 422),
        as_json({"error": {"message": "input has 16 items; at most 4 items are allowed"}}, 400),
        http(413, b"too large", content_type="text/plain"),
    ],
    ids=["TEI", "ours", "413"],
)
def test_a_server_that_takes_fewer_inputs_gets_smaller_batches(refusal: bytes) -> None:
    script = lambda seen: [raw(seen.texts) if len(seen.texts) <= 4 else refusal]  # noqa: E731
    with stub(script) as server, Client(server.url) as client:
        preference = RequestProcessingPreference(batch_size=16, max_concurrent_requests=1)
        answer = client.embed(texts(70), preference=preference)
        assert np.array_equal(answer.numpy(), rows_of(texts(70)))
        assert sum(len(seen.texts) > 4 for seen in server.seen) == 3  # 16, 8, 8

        client.embed(texts(16), preference=preference)
        assert sum(len(seen.texts) > 4 for seen in server.seen) == 3


def test_one_input_that_is_too_large_is_an_error() -> None:
    with (
        stub(lambda _: [http(413, b"too large")]) as server,
        Client(server.url) as client,
        pytest.raises(RequestFailed, match=r"with input 0 .*HTTP 413: too large; 2 attempts"),
    ):
        client.embed(texts(2), preference=ONE_AT_A_TIME)
    assert len(server.seen) == 2


def test_the_forms_of_several_servers_are_kept_apart() -> None:
    ours, theirs = (lambda seen: [raw(seen.texts)]), takes("float", "base64")
    with stub(ours) as first, stub(theirs) as second, Client([first.url, second.url]) as client:
        preference = RequestProcessingPreference(batch_size=1, max_concurrent_requests=4)
        for _ in range(3):
            answer = client.embed(texts(40), preference=preference)
            assert np.array_equal(answer.numpy(), rows_of(texts(40)))
    assert {json.loads(seen.body)["encoding_format"] for seen in first.seen} == {"bytes"}
    assert {json.loads(seen.body)["encoding_format"] for seen in second.seen[-8:]} == {"base64"}
    assert len(second.seen) > 8


def test_fewer_dimensions_that_a_server_passes_over_are_an_error() -> None:
    with stub(lambda seen: [raw(seen.texts)]) as server, Client(server.url) as client:
        assert client.embed("text", dimensions=WIDTH).numpy().shape == (1, WIDTH)
        with pytest.raises(RequestFailed, match=f"rows of {WIDTH} numbers where dimensions=3 was asked for"):
            client.embed("text", dimensions=3)

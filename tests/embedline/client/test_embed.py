"""Texts to rows over a real connection: order, inputs of all kinds, bodies, headers, connections."""

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from embedline import Client, EmbedlineError, RequestFailed, RequestProcessingPreference
from tests.embedline.client.stub import WIDTH, Stub, as_json, raw, rows_of, stub, texts


@pytest.fixture
def server() -> Iterator[Stub]:
    with stub(lambda seen: [raw(seen.texts)]) as running:
        yield running


@pytest.fixture
def client(server: Stub) -> Iterator[Client]:
    with Client(server.url, preference=RequestProcessingPreference(batch_size=7)) as opened:
        yield opened


def test_rows_come_in_the_order_of_the_texts_whatever_the_order_of_answers(client: Client, server: Stub) -> None:
    answer = client.embed(texts(200))

    assert np.array_equal(answer.numpy(), rows_of(texts(200)))
    assert answer.numpy().dtype == np.float32
    assert answer.done.all()
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.truncated_inputs) == (600, 29)
    assert len(answer.individual_request_times) == len(server.seen) == 29
    assert np.asarray(answer) is answer.embeddings


def test_connections_are_kept(client: Client, server: Stub) -> None:
    for _ in range(5):
        client.embed("text 1")
    assert (len(server.seen), server.num_connections) == (5, 1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("text 5", ["text 5"]),
        (("text 5", "text 6"), ["text 5", "text 6"]),
        (np.array(["text 5", "text 66"]), ["text 5", "text 66"]),
        ([[1, 2], np.array([3, 4, 5], np.int32)], [[1, 2], [3, 4, 5]]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ((text for text in texts(9)), texts(9)),
        (["half of a pair: \ud83d 1"], ["half of a pair: \ud83d 1"]),
    ],
    ids=["one", "tuple", "array of texts", "ids", "array of ids", "generator", "surrogate"],
)
def test_what_may_be_embedded(client: Client, given: object, expected: list[object]) -> None:
    assert np.array_equal(client.embed(given).numpy(), rows_of(expected))  # type: ignore[arg-type]


def test_requests_say_which_side_of_a_search_their_texts_are(client: Client, server: Stub) -> None:
    client.embed_query("text 5", "m", dimensions=WIDTH)
    client.embed_documents(texts(9))
    client.embed(texts(2), input_type="classification")
    list(client.iter_embed(texts(2), input_type="query"))
    client.embed(texts(2))
    client.embed(texts(2), extra_body={"input_type": "document"})

    sides = ["query", "document", "document", "classification", "query", None, "document"]
    assert [seen.json().get("input_type") for seen in server.seen] == sides
    assert server.seen[0].json() | {"encoding_format": ""} == {
        "input": ["text 5"],
        "model": "m",
        "dimensions": WIDTH,
        "input_type": "query",
        "encoding_format": "",
    }
    with pytest.raises(ValueError, match=r"^extra_body must leave out input_type: give it as the parameter"):
        client.embed_query("text 5", extra_body={"input_type": "document"})


def test_no_texts_are_no_requests(client: Client, server: Stub) -> None:
    answer = client.embed([])
    assert (answer.numpy().shape, server.seen) == ((0, 0), [])


@pytest.mark.parametrize("wrong", [[*texts(20), 5], [*texts(20), b"x"], [*texts(20), [1.5]], [*texts(20), []]])
def test_a_wrong_input_is_named_before_anything_is_sent(client: Client, server: Stub, wrong: list[object]) -> None:
    with pytest.raises(TypeError, match=r"input\[20\] must be a text or a list of token ids"):
        client.embed(wrong)  # type: ignore[arg-type]
    assert not server.seen


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endianness", "big"),
        ("embed_dtype", "float16"),
        ("output_dtype", "int8"),
        ("embedding_type", ["binary"]),
        ("encoding_format", "binary"),
        ("late_chunking_params", {"chunk_size": 2}),
        *((name, 1) for name in ("input", "model", "dimensions", "user")),
    ],
)
def test_fields_that_are_not_extra_are_refused(client: Client, server: Stub, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^extra_body must leave out {name}: "):
        client.embed("text", extra_body={name: value})
    client.embed("text", extra_body={"endianness": "native", "embed_dtype": "float32", "encoding_format": "float"})
    assert len(server.seen) == 1


def test_bodies_and_headers(server: Stub) -> None:
    preference = RequestProcessingPreference(timeout_s=900, extra_headers={"X-Embedline-Class": "bulk"})
    with Client(f"{server.url}/v1/", "secret", model="a model") as client:
        client.embed("text", dimensions=WIDTH, user="me", extra_body={"prompt_name": "query"}, preference=preference)
        client.embed("text", "another")

    first, second = server.seen
    assert first.json() == {
        "input": ["text"],
        "model": "a model",
        "user": "me",
        "dimensions": WIDTH,
        "prompt_name": "query",
        "encoding_format": "bytes",
    }
    assert second.json()["model"] == "another"
    assert (first.method, first.path) == ("POST", "/v1/embeddings")
    assert first.headers["authorization"] == "Bearer secret"
    assert first.headers["x-embedline-class"] == "bulk"
    assert first.headers["accept"].startswith("application/octet-stream")
    assert 600_000 < int(first.headers["request-timeout-ms"]) <= 900_000
    assert "request-deadline-ms" not in first.headers  # the clocks may differ
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


def test_batches_are_cut_by_characters_too(client: Client, server: Stub) -> None:
    given = ["12345", "6", "7" * 50, "8", "9"]
    preference = RequestProcessingPreference(batch_size=3, max_chars_per_request=6)

    answer = client.embed(given, preference=preference)

    assert np.array_equal(answer.numpy(), rows_of(given))
    assert sorted(map(str, (seen.texts for seen in server.seen))) == sorted(
        map(str, [["12345", "6"], ["7" * 50], ["8", "9"]])
    )


def test_received_rows_are_not_copied() -> None:
    """While 8 MiB of rows come, no more than these are allocated."""
    width, count = 2048, 1024
    body = np.ones((count // 4, width), np.float32).tobytes()
    answer = raw(texts(1), content_length=str(len(body)), x_embedline_shape=f"{count // 4},{width}")
    head, _, _ = answer.partition(b"\r\n\r\n")
    whole = head + b"\r\n\r\n" + body
    with stub(lambda _: [whole]) as server, Client(server.url) as client:
        preference = RequestProcessingPreference(batch_size=count // 4)
        client.embed(texts(count // 4), preference=preference)
        tracemalloc.start()
        rows = client.embed(texts(count), preference=preference).numpy()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert rows.all()
    assert peak < rows.nbytes + 600_000


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "ключ"])
def test_a_key_that_no_header_can_hold_is_refused_without_being_named(key: str) -> None:
    with pytest.raises(ValueError, match=r"^api_key must be printable ASCII without spaces$"):
        Client("http://localhost", key)


def test_a_closed_client_says_so(client: Client) -> None:
    client.close()
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.embed("text")


def test_what_a_client_raises_is_of_one_kind() -> None:
    with (
        Client("http://127.0.0.1:1", preference=RequestProcessingPreference(max_retries=0)) as client,
        pytest.raises(EmbedlineError, match=r"POST http://127.0.0.1:1/v1/embeddings with input 0 .*no connection"),
    ):
        client.embed("text")


@pytest.mark.parametrize(
    ("name", "value"), [("batch_size", 0), ("timeout_s", float("nan")), ("max_retries", -1), ("hedge_budget_pct", 2)]
)
def test_a_preference_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be from "):
        RequestProcessingPreference(**{name: value})  # type: ignore[arg-type]


def test_late_chunking_is_never_cut_into_requests() -> None:
    """Each row depends on all texts of its request."""
    late = {"late_chunking": True}
    small = RequestProcessingPreference(batch_size=2, max_chars_per_request=10)
    with stub(lambda seen: [raw(seen.texts)]) as server, Client(server.url, preference=small) as client:
        client.embed(texts(5))
        assert client.embed(texts(5), extra_body=late).done.all()
        (part,) = client.iter_embed((text for text in texts(5)), extra_body=late)
    assert [seen.texts for seen in server.seen[-2:]] == [texts(5), texts(5)]
    assert len(part.embeddings) == 5
    refusal = as_json({"error": "too many inputs, at most 2"}, status=422)
    with (
        stub(lambda _: [refusal]) as server,
        Client(server.url) as client,
        pytest.raises(RequestFailed, match="too many inputs"),
    ):
        client.embed(texts(4), extra_body=late)
    assert all(seen.texts == texts(4) for seen in server.seen)

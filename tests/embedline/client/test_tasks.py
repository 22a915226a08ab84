"""Reranking, classifying and posting, in the shapes of several servers."""

from typing import Any

import numpy as np
import pytest

from embedline import Client, RequestFailed, RequestProcessingPreference
from tests.embedline.client.stub import Seen, Step, as_json, http, stub, texts

BATCHES = RequestProcessingPreference(batch_size=3)


def score(text: str) -> float:
    return int(text.split()[1]) % 10 / 8


def tei(seen: Seen) -> list[Step]:
    """Best first, as TEI answers."""
    if seen.path != "/rerank" or "texts" not in seen.json():
        return [as_json({"error": "missing field `texts`", "error_type": "Validation"}, 422)]
    found = [{"index": index, "score": score(text)} for index, text in enumerate(seen.json()["texts"])]
    return [as_json(sorted(found, key=lambda one: -one["score"]))]


def jina(seen: Seen) -> list[Step]:
    if seen.path != "/v1/rerank":
        return [as_json({"detail": "Not Found"}, 404)]
    found = [{"index": index, "relevance_score": score(text)} for index, text in enumerate(seen.json()["documents"])]
    return [as_json({"results": found, "model": "theirs", "usage": {"prompt_tokens": 4}})]


@pytest.mark.parametrize("script", [tei, jina])
def test_rerank(script: Any) -> None:
    with stub(script) as server, Client(server.url, preference=BATCHES) as client:
        answer = client.rerank("a query", texts(20))

    assert np.array_equal(answer.numpy(), np.array([score(text) for text in texts(20)], np.float32))
    assert answer.order().tolist()[:4] == [9, 19, 8, 18]
    assert answer.done.all()


def test_options_of_rerank_are_sent_only_if_given() -> None:
    with stub(tei) as server, Client(server.url, model="a model") as client:
        client.rerank("a query", texts(1))
        client.rerank("a query", texts(1), raw_scores=True, truncate=False, truncation_direction="Left")
    assert server.seen[0].json() == {"query": "a query", "texts": texts(1), "model": "a model"}
    assert server.seen[1].json() | server.seen[0].json() == {
        **server.seen[0].json(),
        "raw_scores": True,
        "truncate": False,
        "truncation_direction": "Left",
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([{"index": 0, "score": 1.0}], "1 scores for 2 inputs"),
        ([{"index": 0, "score": 1.0}, {"index": 0, "score": 1.0}], "an index that is"),
        ([{"index": 0, "score": 1.0}, {"index": 1}], "a result without a score"),
        ([{"index": 0, "score": 1.0}, {"index": 1, "score": "NaN"}], "a result without a score"),
        ([{"index": 0, "score": 1.0}, {"index": 1, "score": 1e39}], "with one that is no finite float32"),
        ({"other": 1}, "it has no list `results`"),
        ([1, 2], "an index that is"),
    ],
)
def test_wrong_scores_are_an_error_and_those_before_are_kept(content: object, words: str) -> None:
    script = lambda seen: tei(seen) if seen.number == 0 else [as_json(content)]  # noqa: E731
    preference = RequestProcessingPreference(batch_size=2, max_concurrent_requests=1)
    with (
        stub(script) as server,
        Client(server.url, preference=preference) as client,
        pytest.raises(RequestFailed, match=rf"POST .*/rerank with inputs 2 to 3 .*{words}") as failed,
    ):
        client.rerank("a query", texts(6))
    assert np.array_equal(failed.value.partial.scores[:2], [0, 0.125])
    assert failed.value.partial.order().tolist()[:2] == [1, 0]


def predict(seen: Seen) -> list[Step]:
    if seen.path != "/predict":
        return [http(404, b"")]
    return [
        as_json(
            [
                [{"score": score(item[0]), "label": "good"}, {"score": 0.5, "label": "bad"}]
                for item in seen.json()["inputs"]
            ]
        )
    ]


def infinity(seen: Seen) -> list[Step]:
    if seen.path != "/classify":
        return [http(404, b"")]
    data = [[{"score": score(item), "label": "good"}, {"score": 0.5, "label": "bad"}] for item in seen.json()["input"]]
    return [as_json({"object": "classify", "data": data, "model": "theirs"})]


@pytest.mark.parametrize("script", [predict, infinity])
def test_classify(script: Any) -> None:
    with stub(script) as server, Client(server.url, preference=BATCHES) as client:
        answer = client.classify(texts(10), raw_scores=True)
    assert answer.labels == ("bad", "good")
    assert np.array_equal(answer.numpy()[:, 1], np.array([score(text) for text in texts(10)], np.float32))
    assert answer.best()[3:7] == ["bad", "bad", "good", "good"]


@pytest.mark.parametrize("score", [1e39, -1e39, "1", True, None])
def test_a_label_with_a_score_that_float32_does_not_hold_is_an_error(score: object) -> None:
    script = lambda _: [as_json([[{"label": "good", "score": score}]])]  # noqa: E731
    with (
        stub(script) as server,
        Client(server.url) as client,
        pytest.raises(RequestFailed, match="a result without a score, or with one that is no finite float32"),
    ):
        client.classify(texts(1))


@pytest.mark.parametrize("script", [predict, infinity])
def test_classify_says_how_to_cut_in_every_way_to_ask(script: Any) -> None:
    with stub(script) as server, Client(server.url) as client:
        client.classify(texts(1), truncate=True, truncation_direction="Left")
    body = server.seen[-1].json()
    assert (body["truncate"], body["truncation_direction"]) == (True, "Left")


def test_pairs_are_sent_as_such_and_never_cut_for_another_route() -> None:
    with stub(predict) as server, Client(server.url) as client:
        assert client.classify([("text 1", "text 2")]).best() == ["bad"]
    assert server.seen[0].json() == {"inputs": [["text 1", "text 2"]]}
    with (
        stub(infinity) as server,
        Client(server.url) as client,
        pytest.raises(RequestFailed, match="pairs are not sent in another way"),
    ):
        client.classify([("text 1", "text 2")])
    assert len(server.seen) == 1


@pytest.mark.parametrize("wrong", [5, [], ["a", "b", "c"], ["a", 5]])
def test_a_wrong_input_of_classify_is_named(wrong: Any) -> None:
    with (
        Client("http://localhost:1") as client,
        pytest.raises(TypeError, match=r"inputs\[1\] must be a text or a pair"),
    ):
        client.classify(["fine", wrong])


@pytest.mark.parametrize("content", [[[]], [["a"]], [[{"label": "a"}]], [5], {"data": 5}])
def test_wrong_labels_are_an_error(content: object) -> None:
    with (
        stub(lambda _: [as_json(content)]) as server,
        Client(server.url) as client,
        pytest.raises(RequestFailed, match=r"POST .*/predict"),
    ):
        client.classify(["text"])


def test_batch_post() -> None:
    with stub(lambda seen: [as_json({"got": seen.json()})]) as server, Client(f"{server.url}/v1") as client:
        answer = client.batch_post("/embed_sparse", [{"inputs": number} for number in range(20)])
    assert answer.data == [{"got": {"inputs": number}} for number in range(20)]
    assert {(seen.method, seen.path) for seen in server.seen} == {("POST", "/embed_sparse")}


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD"])
def test_other_methods_have_no_body(method: str) -> None:
    body = b"" if method == "HEAD" else b"abc"
    with stub(lambda _: [http(200, body, content_type="text/plain")]) as server, Client(server.url) as client:
        assert client.batch_post("/metrics", [None, None], method=method).data == [body, body]
    assert {(seen.method, seen.body) for seen in server.seen} == {(method, b"")}


@pytest.mark.parametrize(
    ("path", "method"), [("metrics", "GET"), ("/a b", "GET"), ("/a\r\nb: c", "GET"), ("/", "TRACE")]
)
def test_a_wrong_path_or_method_is_named(path: str, method: str) -> None:
    with Client("http://localhost:1") as client, pytest.raises(ValueError, match=r"^(url_path|method) must "):
        client.batch_post(path, [1], method=method)


def test_a_wrong_item_late_in_a_list_is_named_before_anything_is_sent() -> None:
    circle: list[object] = []
    circle.append(circle)
    preference = RequestProcessingPreference(batch_size=2, max_concurrent_requests=1)
    with stub(lambda _: [as_json(1)]) as server, Client(server.url, preference=preference) as client:
        with pytest.raises(TypeError, match=r"^texts\[4\] must be a text"):
            client.rerank("a query", [*texts(4), 5])  # type: ignore[list-item]
        with pytest.raises(TypeError, match=r"^inputs\[4\] must be a text or a pair"):
            client.classify([*texts(4), ()])
        for wrong in ({1, 2}, circle):
            with pytest.raises(TypeError, match=r"^payloads\[2\] can't be written as JSON$"):
                client.batch_post("/any", [1, 2, wrong])
    assert not server.seen


def test_posts_that_are_done_are_kept() -> None:
    script = lambda seen: [as_json(1) if seen.number < 2 else http(400, b"no")]  # noqa: E731
    with stub(script) as server, Client(server.url) as client:
        preference = RequestProcessingPreference(max_concurrent_requests=1)
        with pytest.raises(RequestFailed, match="with input 2") as failed:
            client.batch_post("/any", [1, 2, 3, 4], preference=preference)
    assert failed.value.partial.data == [1, 1, None, None]

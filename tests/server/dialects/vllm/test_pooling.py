"""POST /pooling: each task by the model that gives it, in every encoding, and chats wherever vLLM takes them."""

import base64
import json
from typing import Any

import numpy as np
import pytest

from engine.types import OutputKind
from server.requests.work import EmbedRequest
from tests.server.asking import RAW, ask
from tests.server.edge import Called, Edge, new_call, one_model, route_of

decode_pooling = route_of("/pooling").decode

EMBED: dict[str, Any] = {"outputs": OutputKind.POOLED | OutputKind.TOKENS, "task": "embed"}
LABELS: dict[str, Any] = {"outputs": OutputKind.LOGITS, "task": "classify", "labels": ["a", "b"], "num_labels": 2}
TAGS: dict[str, Any] = {
    "outputs": OutputKind.TOKEN_LOGITS,
    "task": "token-classify",
    "labels": ["a", "b"],
    "num_labels": 2,
}
LATE: dict[str, Any] = {"outputs": OutputKind.MULTI_VECTOR, "task": "late-interaction"}
HELLO = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]


def pooling(body: dict[str, Any], model: dict[str, Any] | None = None, **others: Any) -> Called:
    return ask("/pooling", body, **{**(EMBED if model is None else model), **others})


def data(called: Called) -> list[Any]:
    answer = json.loads(called.body)
    assert called.status == 200, answer
    assert [(item["index"], item["object"]) for item in answer["data"]] == [
        (at, "pooling") for at in range(len(answer["data"]))
    ]
    return [item["data"] for item in answer["data"]]


@pytest.mark.holds("vLLM's own routes")
def test_the_answer_around_the_data() -> None:
    called = pooling({"input": ["ab", "c"], "task": "embed"})
    answer = json.loads(called.body)

    assert answer["id"] == f"pool-{called.headers['x-request-id']}"
    assert (answer["object"], answer["model"], type(answer["created"])) == ("list", "the-model", int)
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0, "truncated_inputs": 0}


@pytest.mark.holds("vLLM's own routes")
@pytest.mark.parametrize(
    ("own", "prompt"),
    [({"default_prompt": "D: "}, "D: "), ({"default_prompt": "D: ", "instruction": "judge"}, "judge"), ({}, "")],
    ids=["a prompt", "a template's instruction", "none"],
)
@pytest.mark.parametrize(("path", "body"), [("/pooling", {"input": "a"}), ("/classify", {"input": "a"})])
def test_scores_are_of_texts_with_the_models_prompt(
    path: str, body: dict[str, str], own: dict[str, str], prompt: str
) -> None:
    call = new_call(models=one_model(outputs=OutputKind.LOGITS, task="classify", **own))
    request = route_of(path).decode(call, json.dumps(body).encode())
    assert getattr(request, "work", request).prompt == prompt


@pytest.mark.holds("vLLM's own routes")
def test_a_word_behind_the_models_name_is_a_prompt() -> None:
    models = one_model(default_prompt="D: ", facts={"prompts": {"query": "Q: "}})
    named = {None: "D: ", "the-model": "D: ", "the-model:query": "Q: "}

    for name, prompt in named.items():
        work = decode_pooling(new_call(models=models), json.dumps({"input": "a", "model": name}).encode()).work
        assert isinstance(work, EmbedRequest)
        assert work.prompt == prompt
    refused = pooling({"input": [5, 6], "model": "the-model:query"})
    assert (refused.status, refused.error()["param"]) == (400, "model")


@pytest.mark.holds("vLLM's own routes")
@pytest.mark.parametrize(
    ("model", "task", "expected"),
    [
        (EMBED, "embed", [2.0] * 8),
        (EMBED, "token_embed", [[2.0] * 8] * 2),
        (LABELS, "classify", [2.0, 2.0]),
        (TAGS, "token_classify", [[0.5, 0.5]] * 2),
        (LATE, "token_embed", [[2.0] * 8] * 2),
    ],
)
@pytest.mark.parametrize("is_named", [True, False])
def test_tasks(model: dict[str, Any], task: str, expected: Any, is_named: bool) -> None:
    """The stand-in's rows are of equal numbers: the length of the text."""
    if not is_named and model is EMBED and task == "token_embed":
        pytest.skip("not what the model is for")
    assert data(pooling({"input": "ab", **({"task": task} if is_named else {})}, model)) == [expected]
    assert data(pooling({"input": [5, 6], "task": task}, model)) == [expected]
    assert len(data(pooling({"input": [[5, 6], [7]], "task": task}, model))) == 2


@pytest.mark.holds("vLLM's own routes")
def test_raw_scores_of_tokens() -> None:
    assert data(pooling({"input": "ab", "use_activation": False}, TAGS)) == [[[2.0, 2.0]] * 2]


@pytest.mark.holds("vLLM's own routes")
@pytest.mark.parametrize(("endianness", "order"), [("native", "<"), ("little", "<"), ("big", ">")])
@pytest.mark.parametrize(("embed_dtype", "kind"), [("float32", "f4"), ("float16", "f2")])
def test_encodings(endianness: str, order: str, embed_dtype: str, kind: str) -> None:
    form = {"embed_dtype": embed_dtype, "endianness": endianness}
    numpy_type = order + kind

    (text,) = data(pooling({"input": "ab", "encoding_format": "base64", **form}))
    assert np.frombuffer(base64.b64decode(text), numpy_type).tolist() == [2.0] * 8
    texts = data(pooling({"input": ["ab", "c"], "task": "token_embed", "encoding_format": "base64", **form}))
    assert [len(np.frombuffer(base64.b64decode(each), numpy_type)) for each in texts] == [16, 8]

    called = pooling({"input": ["ab", "c"], "task": "token_embed", "encoding_format": "bytes", **form})
    rows = json.loads(called.headers["metadata"])["data"]
    assert [row["shape"] for row in rows] == [[2, 8], [1, 8]]
    parts = [np.frombuffer(called.body[row["start"] : row["end"]], numpy_type).tolist() for row in rows]
    assert parts == [[2.0] * 16, [1.0] * 8]
    alone = pooling({"input": ["ab", "c"], "task": "token_embed", "encoding_format": "bytes_only", **form})
    assert (alone.body, "metadata" in alone.headers) == (called.body, False)
    pooled = pooling({"input": ["ab", "c"], "encoding_format": "bytes", **form})
    assert [row["shape"] for row in json.loads(pooled.headers["metadata"])["data"]] == [[8], [8]]


def test_raw_rows_of_tokens_by_the_header_have_offsets() -> None:
    called = pooling({"input": ["ab", "c"], "task": "token_embed"}, headers=RAW)
    assert np.frombuffer(called.body[:12], "<u4").tolist() == [0, 2, 3]
    assert called.headers["x-embedline-offsets"] == "3"


@pytest.mark.holds("vLLM's own routes")
@pytest.mark.parametrize(
    ("body", "model", "param", "start"),
    [
        ({"input": "a", "task": "classify"}, EMBED, "task", "Unsupported task: 'classify'"),
        ({"input": "a", "task": "plugin"}, EMBED, "task", "Unsupported task: 'plugin'"),
        ({"input": "a", "task": "embed"}, LATE, "task", "Unsupported task: 'embed'. Supported tasks: token_embed"),
        ({"input": "a", "task": "token_classify"}, LABELS, "task", "Unsupported task: 'token_classify'"),
        ({"input": "a", "task": "QXZJ"}, EMBED, "task", "task must be one of"),
        ({"input": "a", "dimensions": 4}, EMBED, "dimensions", "dimensions"),
        ({"input": "a", "encoding_format": "QXZJ"}, EMBED, "encoding_format", "encoding_format must be"),
        ({"input": "a", "embed_dtype": "QXZJ"}, EMBED, "embed_dtype", "embed_dtype must be"),
        ({"input": "a", "endianness": "QXZJ"}, EMBED, "endianness", "endianness must be"),
        ({"input": ""}, EMBED, "input", "input"),
        ({"input": "a", "messages": HELLO}, EMBED, "messages", "messages can't be given with input"),
        ({"input": "a", "cache_salt": ""}, EMBED, "cache_salt", "cache_salt"),
        ({"input": "a", "truncate_prompt_tokens": 17}, EMBED, "truncate_prompt_tokens", "truncate_prompt_tokens"),
    ],
)
def test_what_is_refused(body: dict[str, Any], model: dict[str, Any], param: str, start: str) -> None:
    error = pooling(body, model).error()
    assert (error["type"], error["code"], error["param"]) == ("BadRequestError", 400, param)
    assert error["message"].startswith(start)
    assert "QXZJ" not in error["message"]


# chats


@pytest.mark.holds("Chats")
@pytest.mark.parametrize(
    ("path", "model"),
    [("/v1/embeddings", EMBED), ("/pooling", EMBED), ("/classify", LABELS), ("/v1/classify", LABELS)],
)
def test_a_chat_is_its_rendered_text_without_special_tokens(path: str, model: dict[str, Any]) -> None:
    asked: list[Any] = []

    def look(edge: Edge) -> None:
        asked.extend(edge.tokenizers.asked)

    chat = ask(path, {"messages": HELLO, "add_generation_prompt": True}, **model, look=look)
    text = ask(path, {"input": "abc", "add_special_tokens": False}, **model)

    (chats, _), (texts, how) = asked
    assert chats[0].add_generation_prompt
    assert (list(texts), how["add_special_tokens"], how["prompt"]) == (["abc"], False, "")
    answers = [json.loads(called.body) for called in (chat, text)]
    assert answers[0]["data"] == answers[1]["data"]
    assert answers[0]["usage"] == answers[1]["usage"]
    several = ask(path, {"messages": [HELLO, HELLO]}, **model)
    assert len(json.loads(several.body)["data"]) == 2


def test_a_chat_takes_no_prompt() -> None:
    called = ask("/v1/embeddings", {"messages": HELLO, "prompt_name": "query"}, **EMBED)
    assert (called.status, called.error()["param"]) == (400, "prompt_name")


@pytest.mark.holds("vLLM's own routes")
def test_invocations_of_a_model_that_only_pooling_knows() -> None:
    called = ask("/invocations", {"input": "ab"}, **TAGS)
    assert [item["object"] for item in json.loads(called.body)["data"]] == ["pooling"]
    assert ask("/invocations", {"messages": HELLO}, **EMBED).status == 200


@pytest.mark.holds("vLLM's own routes")
def test_answers_of_embeddings_have_an_id() -> None:
    called = ask("/v1/embeddings", {"input": "a"}, **EMBED)
    answer = json.loads(called.body)
    assert answer["id"] == f"embd-{called.headers['x-request-id']}"
    assert isinstance(answer["created"], int)

"""What vLLM's own tests of its pooling routes assert, row by row, of our answers (tests/entrypoints/pooling there).

Left out, with the reasons in docs/api/vllm.md: messages that repeat what was sent, and what depends on vLLM's defaults.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from engine.types import OutputKind
from tests.server.asking import ask

EMBED: dict[str, Any] = {"outputs": OutputKind.POOLED | OutputKind.TOKENS, "task": "embed"}
CLASSIFY: dict[str, Any] = {
    "outputs": OutputKind.LOGITS,
    "task": "classify",
    "labels": ["Default", "Spoiled"],
    "num_labels": 2,
}
CLASSIFY |= {"activation": "softmax"}
RERANK: dict[str, Any] = {"outputs": OutputKind.LOGITS, "task": "rerank", "labels": ["yes"], "activation": "sigmoid"}
LATE: dict[str, Any] = {"outputs": OutputKind.MULTI_VECTOR, "task": "late-interaction"}
TOKENS: dict[str, Any] = {"outputs": OutputKind.TOKEN_LOGITS, "task": "token-classify", "labels": ["a", "b"]}
CHAT = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}, {"role": "user", "content": "ef"}]
TEXT, IDS = "abc", [97, 98, 99]
QUERIES, DOCUMENTS = ["abc", "de"], ["fgh", "i"]
RANK = {"query": "abc", "documents": ["de", "fgh", "i"]}

Check = Callable[[Any], bool]


def has(**fields: Any) -> Check:
    return lambda answer: all(answer[name] == value for name, value in fields.items())


def of(num_items: int, *, tokens: int | None = None, **kinds: Any) -> Check:
    """So many items with an index each, these fields of these types, an id, and usage."""

    def check(answer: Any) -> bool:
        items = answer["data"]
        usage = answer["usage"]
        return (
            isinstance(answer["id"], str)
            and answer["object"] == "list"
            and isinstance(answer["created"], int)
            and [item["index"] for item in items] == list(range(num_items))
            and all(isinstance(item[name], kind) for item in items for name, kind in kinds.items())
            and usage.get("completion_tokens", 0) == 0
            and (tokens is None or usage["prompt_tokens"] == usage["total_tokens"] == tokens)
        )

    return check


def refused(answer: Any) -> bool:
    return "error" in answer and bool(answer["error"]["message"])


def bad_request(task: str) -> Check:
    return lambda answer: (
        answer["error"]["type"] == "BadRequestError"
        and answer["error"]["message"].startswith(f"Unsupported task: {task!r}")
    )


def ranked(num_results: int) -> Check:
    return lambda answer: (
        answer["id"] is not None
        and len(answer["results"]) == num_results
        and all(isinstance(result["relevance_score"], float) for result in answer["results"])
    )


def inputs(path: str, model: dict[str, Any], **kinds: Any) -> list[Any]:
    """What vLLM asserts of texts, ids, batches of them, chats and truncation, alike on three routes."""
    return [
        (path, {"input": TEXT}, model, of(1, tokens=3, **kinds)),
        (path, {"input": IDS}, model, of(1, tokens=3, **kinds)),
        (path, {"input": [TEXT] * 4}, model, of(4, tokens=12, **kinds)),
        (path, {"input": [IDS] * 4}, model, of(4, tokens=12, **kinds)),
        (path, {"input": TEXT, "truncate_prompt_tokens": 17}, model, refused),
        (path, {"input": IDS, "truncate_prompt_tokens": 2}, model, of(1, tokens=2, **kinds)),
        (path, {"input": TEXT, "add_special_tokens": False}, model, of(1, **kinds)),
        (path, {"input": TEXT, "add_special_tokens": True}, model, of(1, **kinds)),
        (path, {"messages": CHAT}, model, of(1, tokens=6, **kinds)),
        (path, {"messages": CHAT, "add_generation_prompt": True}, model, of(1, **kinds)),
        (path, {"messages": CHAT, "continue_final_message": True}, model, of(1, **kinds)),
        (path, {"messages": CHAT, "add_special_tokens": True}, model, of(1, **kinds)),
        (
            path,
            {"messages": CHAT, "continue_final_message": True, "add_generation_prompt": True},
            model,
            lambda answer: answer["error"]["message"].startswith("Cannot set both `continue_final_message` and"),
        ),
        (path, {"input": ""}, model, refused),
        (path, {"input": []}, model, refused),
        (path, {"input": TEXT, "cache_salt": "tenant-a"}, model, of(1, **kinds)),
        (path, {"input": TEXT, "user": "somebody"}, model, of(1, **kinds)),
    ]


ROWS = [
    *inputs("/v1/embeddings", EMBED, embedding=list),
    *inputs("/classify", CLASSIFY, label=str, probs=list, num_classes=int),
    *inputs("/pooling", EMBED, data=list),
    ("/pooling", {"input": TEXT, "cache_salt": ""}, EMBED, refused),
    ("/tokenize", {"prompt": TEXT}, EMBED, has(tokens=IDS, count=3)),
    ("/detokenize", {"tokens": IDS}, EMBED, has(prompt="97 98 99")),
    ("/v1/embeddings", {"input": TEXT, "encoding_format": "base64"}, EMBED, of(1, embedding=str)),
    *[
        (path, {"input": TEXT, "encoding_format": "base64", name: "bad"}, EMBED, refused)
        for path in ("/v1/embeddings", "/pooling")
        for name in ("encoding_format", "embed_dtype", "endianness")
    ],
    ("/v1/embeddings", {"input": TEXT, "dimensions": -1}, EMBED, refused),
    *[
        ("/pooling", {"input": TEXT, "task": task}, model, bad_request(task))
        for model, tasks in (
            (EMBED, ("classify", "token_classify", "plugin")),
            (CLASSIFY, ("embed", "token_embed", "plugin", "token_classify")),
            (LATE, ("embed", "classify", "token_classify", "plugin")),
            (TOKENS, ("embed", "token_embed", "plugin")),
        )
        for task in tasks
    ],
    ("/pooling", {"input": TEXT, "task": "embed"}, EMBED, lambda answer: len(answer["data"][0]["data"]) == 8),
    ("/pooling", {"input": TEXT, "task": "token_embed"}, EMBED, lambda answer: len(answer["data"][0]["data"]) == 3),
    ("/pooling", {"input": TEXT, "task": "token_embed"}, LATE, lambda answer: len(answer["data"][0]["data"]) == 3),
    ("/pooling", {"input": TEXT, "task": "classify"}, CLASSIFY, lambda answer: len(answer["data"][0]["data"]) == 2),
    ("/pooling", {"input": TEXT, "task": "classify"}, RERANK, lambda answer: len(answer["data"][0]["data"]) == 1),
    *[
        ("/score", {first: queries, second: documents}, model, of(num_scores, score=float))
        for model in (EMBED, RERANK, LATE)
        for first, second, queries, documents, num_scores in (
            ("queries", "documents", QUERIES[0], DOCUMENTS[0], 1),
            ("queries", "documents", QUERIES[0], DOCUMENTS, 2),
            ("queries", "documents", QUERIES, DOCUMENTS, 2),
            ("queries", "items", QUERIES, DOCUMENTS, 2),
            ("text_1", "text_2", QUERIES, DOCUMENTS, 2),
            ("data_1", "data_2", QUERIES, DOCUMENTS, 2),
        )
    ],
    *[("/rerank", RANK, model, ranked(3)) for model in (EMBED, RERANK, LATE)],
    *[("/rerank", {**RANK, "top_n": 2}, model, ranked(2)) for model in (EMBED, RERANK, LATE)],
    ("/rerank", {**RANK, "top_n": 0}, RERANK, ranked(3)),
    ("/rerank", {**RANK, "top_n": -1}, RERANK, refused),
    ("/rerank", {**RANK, "use_activation": False}, RERANK, ranked(3)),
    ("/rerank", {**RANK, "max_tokens_per_doc": 1}, RERANK, ranked(3)),
    ("/score", {"queries": "a", "documents": "b", "truncate_prompt_tokens": 17}, RERANK, refused),
    ("/score", {"queries": TEXT, "documents": "d"}, CLASSIFY, refused),
    ("/rerank", RANK, CLASSIFY, refused),
]


@pytest.mark.holds("vLLM's own routes", "Chats")
@pytest.mark.parametrize(("path", "body", "model", "check"), ROWS)
def test_it_is_as_vllm_asserts(path: str, body: dict[str, Any], model: dict[str, Any], check: Check) -> None:
    assert check(json.loads(ask(path, {"model": "the-model", **body}, **model).body))

"""What text-embeddings-inference's routes answer, as checks of decoded JSON, and models of each of its kinds."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.types import OutputKind

EMBED: dict[str, Any] = {"outputs": OutputKind.POOLED | OutputKind.TOKENS, "task": "embed"}
SPARSE: dict[str, Any] = {"outputs": OutputKind.SPARSE, "task": "sparse"}
RERANK: dict[str, Any] = {"outputs": OutputKind.LOGITS, "task": "rerank", "labels": ["LABEL_0"]}
CLASSIFY: dict[str, Any] = {
    "outputs": OutputKind.LOGITS,
    "task": "classify",
    "labels": ["admiration", "amusement", "anger"],
    "num_labels": 3,
    "rows": [[0.5, 3.0, 1.0]],
}
CLASSIFY_TWO = CLASSIFY | {"rows": CLASSIFY["rows"] * 2}
RANK = {"query": "ab", "texts": ["c", "defg", "hi"]}  # scores are lengths of pairs: 3, 6 and 4
SIMILAR = {"source_sentence": "abc", "sentences": ["de", "f"]}
_TOKEN = {"id": int, "text": str, "special": bool, "start": int, "stop": int}

Check = Callable[[Any], bool]


def rows(num_rows: int, *, width: int = 8) -> Check:
    """Of floats, in two dimensions also for one text."""
    return lambda answer: (
        [len(row) for row in answer] == [width] * num_rows
        and all(isinstance(number, float) for row in answer for number in row)
    )


def equal_rows(answer: Any) -> bool:
    """Equal texts have equal rows, whatever they are sent with."""
    return bool(answer == answer[:1] * 3 and len(answer[0]) == 4)


def token_rows(*lengths: int) -> Check:
    """A row for each token."""
    return lambda answer: (
        [len(item) for item in answer] == list(lengths) and all(len(row) == 8 for item in answer for row in item)
    )


def sparse(*values: float) -> Check:
    """One entry for each item."""
    return lambda answer: (
        [entry["value"] for item in answer for entry in item] == list(values)
        and all(set(entry) == {"index", "value"} for item in answer for entry in item)
    )


def ranks(*indices: int, texts: list[str] | None = None) -> Check:
    """Those indices, the best first, with `text` only if it is asked for."""
    names = {"index", "score"} if texts is None else {"index", "score", "text"}

    def check(answer: Any) -> bool:
        scores = [rank["score"] for rank in answer]
        return (
            [rank["index"] for rank in answer] == list(indices)
            and scores == sorted(scores, reverse=True)
            and all(set(rank) == names for rank in answer)
            and (texts is None or [rank["text"] for rank in answer] == texts)
        )

    return check


def predictions(answer: Any) -> bool:
    """A score and a label each, the best first; the scores are a distribution."""
    return (
        [set(each) for each in answer] == [{"score", "label"}] * 3
        and [each["label"] for each in answer] == ["amusement", "anger", "admiration"]
        and sum(each["score"] for each in answer) == pytest.approx(1, abs=1e-5)
    )


def items(num_items: int, check: Check) -> Check:
    """Each of a list."""
    return lambda answer: len(answer) == num_items and all(map(check, answer))


def predicted(num_items: int, check: Check) -> Check:
    """Each of /vertex's predictions."""
    return lambda answer: set(answer) == {"predictions"} and items(num_items, check)(answer["predictions"])


def tokens(*lengths: int) -> Check:
    """The tokens of each text, with their places in it."""
    return lambda answer: (
        [len(item) for item in answer] == list(lengths)
        and all(set(token) == set(_TOKEN) for item in answer for token in item)
        and all(isinstance(token[name], kind) for item in answer for token in item for name, kind in _TOKEN.items())
    )


def numbers(*expected: float) -> Check:
    """A list of them."""
    return lambda answer: bool(answer == pytest.approx(list(expected), abs=1e-6))


def openai(num_items: int, kind: type, *, width: int | None = None) -> Check:
    """Embeddings of texts with three tokens each."""

    def check(answer: Any) -> bool:
        embeddings = [item["embedding"] for item in answer["data"]]
        places = [(item["object"], item["index"]) for item in answer["data"]]
        usage = answer["usage"]
        return (
            (answer["object"], answer["model"]) == ("list", "the-model")
            and places == [("embedding", index) for index in range(num_items)]
            and all(isinstance(embedding, kind) for embedding in embeddings)
            and (width is None or all(len(embedding) == width for embedding in embeddings))
            and usage["prompt_tokens"] == usage["total_tokens"] == 3 * num_items
        )

    return check

"""The tasks of calls: what a task is made of, and those whose answers are small: rerank, classify and any JSON.

A task has the bodies of its requests, and reads their answers. Knows no connection. Embeddings are in `embed`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from embedline.client.answer import HttpAnswer
from embedline.client.failure import Failure, Kind

JSON = "application/json"
UNSAID = ""  # a way's form where the body does not name one: some servers take no field that they don't know
_LARGEST = float(np.finfo(np.float32).max)
_TEI, _OTHERS = "inputs", "input"
METHODS = ("POST", "GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to ask: servers differ in paths and in forms of bodies and answers."""

    path: str
    form: str  # the task's own word for the form
    accept: str = JSON


@dataclass(frozen=True, slots=True)
class Batch:
    """The inputs of one request: inputs[start:stop]."""

    start: int
    items: Sequence[Any]

    @property
    def stop(self) -> int:
        return self.start + len(self.items)

    def halves(self) -> "tuple[Batch, Batch]":
        half = len(self.items) // 2
        return Batch(self.start, self.items[:half]), Batch(self.start + half, self.items[half:])


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPart(Generic[T_co]):
    """The part of a call's result that an answer has. None = it does not say."""

    result: T_co  # of the batch's items, as the task has it
    failed: NDArray[np.bool_] | None = None  # bool [items]: which failed alone and have no result; None = none of them
    model: str | None = None
    prompt_tokens: int | None = None
    truncated: int | None = None
    form: str | None = None  # the form it came in, where that tells which way to ask next time


class Task(Protocol[T_co]):
    """One kind of request."""

    name: str
    method: str
    ways: tuple[Way, ...]  # the best first
    is_whole: bool  # all inputs of a call go in one request, for each one's result depends on the others

    def prepare(self, items: list[Any], start: int) -> list[Any]:
        """The items as they are sent; `start` is the number of the first. Raises TypeError, naming the index."""
        ...

    def length(self, item: Any) -> int:
        """The number of its characters."""
        ...

    def body(self, items: Sequence[Any], way: Way) -> bytes | None:
        """The body of the request."""
        ...

    def read(self, batch: Batch, way: Way, answer: HttpAnswer) -> AnswerPart[T_co]:
        """Runs in the thread that received the head of the answer. Raises Failure."""
        ...


def as_json(value: Any) -> bytes:
    """The value as JSON in UTF-8; what UTF-8 can't hold (half of a surrogate pair) is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def without_none(**fields: Any) -> dict[str, Any]:
    """The fields that are given."""
    return {name: value for name, value in fields.items() if value is not None}


def wrong(words: str) -> Failure:
    """A whole answer that is not what was asked for."""
    return Failure(Kind.ANSWER, words)


def most_bytes(batch: Batch) -> int:
    """The most bytes read of an answer in JSON: room for 20,000 numbers, written out, or the text itself, an item."""
    num_characters = sum(len(item) for item in batch.items if isinstance(item, str))
    return (1 << 20) + (len(batch.items) << 19) + 12 * num_characters


def number_in(values: Any, name: str) -> int | None:
    """A count in an object of an answer."""
    value = values.get(name) if isinstance(values, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def score_in(item: Any, *names: str) -> float:
    """The number under the first of these names. Raises Failure if it is none, or none that float32 has."""
    values = item if isinstance(item, dict) else {}
    score = next((values[name] for name in names if values.get(name) is not None), None)
    if not isinstance(score, int | float) or isinstance(score, bool) or not abs(score) <= _LARGEST:
        raise wrong("a result without a score, or with one that is no finite float32")
    return float(score)


def text_in(values: Any, name: str) -> str | None:
    """A text in an object of an answer."""
    value = values.get(name) if isinstance(values, dict) else None
    return value if isinstance(value, str) else None


def check_count(found: int, batch: Batch, what: str) -> None:
    """Raises Failure where an answer has not one result for each item."""
    if found != len(batch.items):
        raise wrong(f"{found} {what} for {len(batch.items)} inputs")


def index_in(item: Any, batch: Batch, seen: set[int]) -> int:
    """The item of the batch that an object of an answer is for. Raises Failure if it is none, or one came before."""
    index = number_in(item, "index")
    if index is None or index >= len(batch.items) or index in seen:
        raise wrong("an index that is missing, too large or given twice")
    seen.add(index)
    return index


class RerankTask:
    """Texts to scores, float32 [texts]."""

    is_whole = False
    name = "rerank"
    method = "POST"
    ways: tuple[Way, ...] = (Way("/rerank", "texts"), Way("/v1/rerank", "documents"), Way("/rerank", "documents"))

    def __init__(self, query: str, *, model: str | None, options: dict[str, Any]) -> None:
        self._query = query
        self._model = model
        self._options = options  # TEI's: raw_scores, truncate, truncation_direction

    def prepare(self, items: list[Any], start: int) -> list[Any]:
        for index, item in enumerate(items, start):
            if not isinstance(item, str):
                raise TypeError(f"texts[{index}] must be a text, not {type(item).__name__}")
        return items

    def length(self, item: Any) -> int:
        return len(item) + len(self._query)

    def body(self, items: Sequence[Any], way: Way) -> bytes:
        fields = {"query": self._query, way.form: items, **without_none(model=self._model, **self._options)}
        if way.form == "documents":
            fields["top_n"] = len(items)
        return as_json(fields)

    def read(self, batch: Batch, way: Way, answer: HttpAnswer) -> AnswerPart[NDArray[np.float32]]:
        content, results = answer.results("results", "data", most=most_bytes(batch))
        check_count(len(results), batch, "scores")
        scores = np.empty(len(batch.items), np.float32)
        seen: set[int] = set()
        for item in results:
            index = index_in(item, batch, seen)
            scores[index] = score_in(item, "score", "relevance_score")
        usage = content.get("usage")
        return AnswerPart(
            result=scores,
            model=text_in(content, "model"),
            prompt_tokens=number_in(usage, "prompt_tokens"),
            truncated=number_in(usage, "truncated_inputs"),
        )


class ClassifyTask:
    """Texts or pairs of texts to scores by label, of each."""

    is_whole = False
    name = "classify"
    method = "POST"
    ways: tuple[Way, ...] = (Way("/predict", _TEI), Way("/classify", _OTHERS))

    def __init__(self, *, model: str | None, raw_scores: bool | None, truncation: dict[str, Any]) -> None:
        self._model = model
        self._raw_scores = raw_scores
        self._truncation = truncation

    def prepare(self, items: list[Any], start: int) -> list[Any]:
        return [_texts(item, index) for index, item in enumerate(items, start)]

    def length(self, item: Any) -> int:
        return sum(map(len, item))

    def body(self, items: Sequence[Any], way: Way) -> bytes:
        if way.form == _TEI:
            fields = without_none(model=self._model, raw_scores=self._raw_scores, **self._truncation)
            return as_json({"inputs": items, **fields})
        if any(len(item) > 1 for item in items):
            raise wrong("it has no /predict, and pairs are not sent in another way")
        fields = without_none(model=self._model, **self._truncation)
        # Infinity's name, which chooses Infinity's form of the answer at a server that has both: all labels by name.
        return as_json({"input": [item[0] for item in items], "raw_scores": bool(self._raw_scores), **fields})

    def read(self, batch: Batch, way: Way, answer: HttpAnswer) -> AnswerPart[list[dict[str, float]]]:
        content, results = answer.results("data", most=most_bytes(batch))
        check_count(len(results), batch, "results")
        return AnswerPart(result=[_scores(item) for item in results], model=text_in(content, "model"))


def _texts(item: Any, index: int) -> list[str]:
    texts = [item] if isinstance(item, str) else list(item) if isinstance(item, list | tuple) else []
    if not 1 <= len(texts) <= 2 or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"inputs[{index}] must be a text or a pair of texts, not {type(item).__name__}")
    return texts


def _scores(item: Any) -> dict[str, float]:
    """One item in the form of TEI and Infinity: a list of objects with label and score."""
    if not isinstance(item, list) or not item:
        raise wrong("a result that is no list of labels")
    found = {}
    for one in item:
        label = text_in(one, "label")
        if label is None:
            raise wrong("a score without a label")
        found[label] = score_in(one, "score")
    return found


class PostTask:
    """A payload to its answer."""

    is_whole = False
    name = "batch_post"

    def __init__(self, url_path: str, method: str) -> None:
        """Raises ValueError for a wrong path or method."""
        if not url_path.startswith("/") or not url_path.isascii() or not url_path.isprintable() or " " in url_path:
            raise ValueError("url_path must begin with a slash and have no spaces")
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}")
        self.method = method
        self._has_body = method in ("POST", "PUT", "PATCH")
        self.ways: tuple[Way, ...] = (Way(url_path, "", f"{JSON}, */*"),)

    def prepare(self, items: list[Any], start: int) -> list[Any]:
        """Their JSON, which is written before anything is sent: a payload may have none."""
        return [_written(item, index) for index, item in enumerate(items, start)] if self._has_body else items

    def length(self, item: Any) -> int:
        return 0

    def body(self, items: Sequence[Any], way: Way) -> bytes | None:
        return items[0] if self._has_body else None

    def read(self, batch: Batch, way: Way, answer: HttpAnswer) -> AnswerPart[Any]:
        is_json = answer.content_type == JSON or answer.content_type.endswith("+json")
        return AnswerPart(result=answer.json() if is_json and answer.length != 0 else bytes(answer.read_all()))


def _written(payload: Any, index: int) -> bytes:
    try:
        return as_json(payload)
    except (TypeError, ValueError, RecursionError) as error:  # another type, a value in itself, too deep
        raise TypeError(f"payloads[{index}] can't be written as JSON") from error

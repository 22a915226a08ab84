"""What a task is made of. Knows no route."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from embedline.client.transport.answer import Answer
from embedline.client.transport.failure import Failure, Kind

JSON = "application/json"
UNSAID = ""  # a way's form where the body does not name one: some servers take no field that they don't know

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to ask: servers differ in paths and in forms of bodies and answers."""

    path: str
    form: str  # the task's own word for the form
    accept: str = JSON


@dataclass(frozen=True, slots=True)
class Batch:
    """What one request asks for: inputs[start:stop]."""

    start: int
    items: Sequence[Any]

    @property
    def stop(self) -> int:
        return self.start + len(self.items)

    def halves(self) -> "tuple[Batch, Batch]":
        half = len(self.items) // 2
        return Batch(self.start, self.items[:half]), Batch(self.start + half, self.items[half:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What an answer has of the result. None = it does not say."""

    model: str | None = None
    prompt_tokens: int | None = None
    truncated: int | None = None
    form: str | None = None  # the form it came in, where that tells which way to ask next time


P_co = TypeVar("P_co", bound=Part, covariant=True)


class Task(Protocol[P_co]):
    """One kind of request."""

    name: str
    method: str
    ways: tuple[Way, ...]  # the best first
    is_whole: bool  # all inputs of a call go in one request, for each one's result depends on the others

    def prepare(self, items: list[Any], start: int) -> list[Any]:
        """The items as they are sent; `start` is the number of the first. Raises TypeError, naming the index."""
        ...

    def length(self, item: Any) -> int:
        """Its characters."""
        ...

    def body(self, items: Sequence[Any], way: Way) -> bytes | None:
        """Of the request."""
        ...

    def read(self, batch: Batch, way: Way, answer: Answer) -> P_co:
        """Runs in the thread that received the head of the answer. Raises Failure."""
        ...


def as_json(value: Any) -> bytes:
    """In UTF-8; what UTF-8 can't hold (half of a surrogate pair) is escaped."""
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
    """Of an answer in JSON that is read: room for 20,000 numbers, written out, or for the text itself, an item."""
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
    """Which item of the batch an object of an answer is for. Raises Failure if it is none, or one that came before."""
    index = number_in(item, "index")
    if index is None or index >= len(batch.items) or index in seen:
        raise wrong("an index that is missing, too large or given twice")
    seen.add(index)
    return index

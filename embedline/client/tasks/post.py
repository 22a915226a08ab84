"""Any JSON to any path, one payload in each request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embedline.client.tasks.task import JSON, Batch, Part, Way, as_json
from embedline.client.transport.answer import Answer

METHODS = ("POST", "GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
_WITH_BODY = ("POST", "PUT", "PATCH")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuePart(Part):
    """What one request was answered."""

    value: Any


class PostTask:
    """Payloads to answers."""

    is_whole = False
    name = "batch_post"

    def __init__(self, url_path: str, method: str) -> None:
        """Raises ValueError for a wrong path or method."""
        if not url_path.startswith("/") or not url_path.isascii() or not url_path.isprintable() or " " in url_path:
            raise ValueError("url_path must begin with a slash and have no spaces")
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}")
        self.method = method
        self._has_body = method in _WITH_BODY
        self.ways: tuple[Way, ...] = (Way(url_path, "", f"{JSON}, */*"),)

    def prepare(self, items: list[Any], start: int) -> list[Any]:
        """Their JSON, which is written before anything is sent: a payload may have none."""
        return [_written(item, index) for index, item in enumerate(items, start)] if self._has_body else items

    def length(self, item: Any) -> int:
        return 0

    def body(self, items: Sequence[Any], way: Way) -> bytes | None:
        return items[0] if self._has_body else None

    def read(self, batch: Batch, way: Way, answer: Answer) -> ValuePart:
        is_json = answer.content_type == JSON or answer.content_type.endswith("+json")
        return ValuePart(value=answer.json() if is_json and answer.length != 0 else bytes(answer.read_all()))


def _written(payload: Any, index: int) -> bytes:
    try:
        return as_json(payload)
    except (TypeError, ValueError, RecursionError) as error:  # another type, a value in itself, too deep
        raise TypeError(f"payloads[{index}] can't be written as JSON") from error

"""One request to an edge whose model is for something else than embeddings."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.types import OutputKind
from server.dialects.route import Call, RequestOptions
from server.requests.errors import RequestError
from tests.server.edge import Called, Edge, answered, new_call, state_with

RAW = {"accept": "application/octet-stream"}


def ask(
    path: str,
    body: bytes | dict[str, Any],
    outputs: OutputKind,
    *,
    rows: Any = None,
    token_rows: Any = None,
    num_labels: int = 1,
    headers: dict[str, str] | None = None,
    before: Callable[[Edge], None] = lambda edge: None,
    look: Callable[[Edge], None] = lambda edge: None,
    **model: Any,
) -> Called:
    """What is answered. `rows` are what the engine gives, `model` is what is known of it, as its task and labels;
    `before` sees the edge first, and `look` afterwards."""

    def prepare(edge: Edge) -> None:
        edge.managers.num_labels = num_labels
        edge.managers.rows = None if rows is None else np.array(rows, np.float32)
        edge.managers.token_rows = None if token_rows is None else np.array(token_rows, np.float32)
        before(edge)

    loaded = state_with(outputs, **model)
    return answered("POST", path, body, headers, before=prepare, look=look, loaded=loaded, max_bytes=10_000)


def decoded_by(
    decode: Callable[[Call, bytes], Any], body: Any, options: RequestOptions | None = None, **how: Any
) -> Any:
    """The request that a decoder makes of a body, of JSON if it is not bytes."""
    return decode(new_call(options, **how), body if isinstance(body, bytes) else json.dumps(body).encode())


def refused_by(decode: Callable[[Call, bytes], Any], body: Any, **how: Any) -> tuple[type[RequestError], str | None]:
    """The class of the error that a decoder raises, and the field that it names."""
    with pytest.raises(RequestError) as refused:
        decoded_by(decode, body, **how)
    error = refused.value
    assert error.param in error.message if error.param else error.message.startswith("the body")
    return type(error), error.param


def tei_error(called: Called) -> tuple[int, str, str]:
    """Status, type and message of an error in TEI's shape."""
    error = json.loads(called.body)
    assert set(error) == {"error", "error_type"}
    return called.status, error["error_type"], error["error"]

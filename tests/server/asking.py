"""One request to an edge whose model is for something else than embeddings."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from engine.types import OutputKind
from tests.server.edge import Called, Edge, answered, state_with

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


def tei_error(called: Called) -> tuple[int, str, str]:
    """Status, type and message of an error in TEI's shape."""
    error = json.loads(called.body)
    assert set(error) == {"error", "error_type"}
    return called.status, error["error_type"], error["error"]

"""Async requests of a running server, and what must become of them."""

import time
from typing import Any

from tests.server_e2e.running import PATIENCE, Reply, Server

ENDS = {"SUCCEEDED", "FAILED", "EXPIRED", "CANCELED", "WEBHOOK_FAILED"}


def accepted(server: Server, model_input: Any, **fields: Any) -> str:
    """The id of a request that was kept."""
    answer = server.request("POST", "/async_predict", {"model_input": model_input, **fields})
    assert answer.status == 202, answer
    request_id: str = answer.json()["request_id"]
    return request_id


def view(server: Server, request_id: str, **headers: str) -> Any:
    answer = server.request("GET", f"/async_request/{request_id}", **headers)
    assert answer.status == 200, answer
    return answer.json()


def ended(server: Server, request_id: str, **headers: str) -> Any:
    """What is known of a request once it has ended."""
    latest = time.monotonic() + PATIENCE
    while (found := view(server, request_id, **headers))["status"] not in ENDS:
        assert time.monotonic() < latest, found
    return found


def result(server: Server, request_id: str, **headers: str) -> Reply:
    """Once it is there."""
    ended(server, request_id, **headers)
    return server.request("GET", f"/async_request/{request_id}/result", **headers)

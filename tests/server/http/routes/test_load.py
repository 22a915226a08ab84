"""GET /load: how much there is to do, and never as fresh what is old."""

import json
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from server.requests import admission
from tests.server.edge import Called, Edge, answered, call, ready_state

NOW = 1000.0  # where `ask` asks


def ask(path: str = "/load", cells: dict[str, float] | None = None, *, draining: bool = False, **edge: Any) -> Called:
    def set_up(its: Edge) -> None:
        its.state.draining = draining
        for name, value in ({"published_at": NOW} | (cells or {})).items():
            getattr(its.page, name)[:] = value

    with mock.patch.object(admission, "time", SimpleNamespace(monotonic=lambda: NOW)):
        return answered("GET", path, before=set_up, **edge)


@pytest.mark.holds("The load report")
def test_it_counts_tokens_of_both_classes() -> None:
    cells = {"queued_tokens": 50, "computing_tokens": 10, "admitted_tokens": 110, "tokens_per_second": 100}
    answer = ask(cells={**cells, "oldest_since": NOW - 3})
    report = json.loads(answer.body)

    assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
    assert (report["ready"], report["reason"]) == (True, None)
    tokens = [report[f"{name}_tokens"] for name in ("waiting", "computing", "in_flight")]
    assert tokens == [2 * 40, 2 * 10, 2 * 110]
    assert report["oldest_wait_seconds"] == 3.0
    assert report["expected_wait_seconds"] >= 1.0
    assert report["age_seconds"] == 0.0


@pytest.mark.holds("The load report")
def test_old_numbers_do_not_look_fresh() -> None:
    answer = ask(cells={"published_at": NOW - 5})
    report = json.loads(answer.body)

    assert (answer.status, report["ready"], answer.headers["retry-after"]) == (503, False, "2")
    assert report["age_seconds"] == 5.0
    assert report["reason"].startswith("these numbers are 5.0 s old")


@pytest.mark.holds("The load report")
@pytest.mark.parametrize("is_loaded", [False, True])
def test_it_is_not_ready_where_readyz_is_not(is_loaded: bool) -> None:
    answer = ask(draining=is_loaded, is_loaded=is_loaded)

    assert answer.status == 503
    assert json.loads(answer.body)["reason"] == ("the server is stopping" if is_loaded else "starting")


@pytest.mark.holds("The load report")
async def test_of_one_model() -> None:
    both = ready_state()
    both["models"].append(both["models"][0] | {"index": 1, "info": both["models"][0]["info"] | {"name": "other"}})
    both["names"] = ["the-model", "other"]
    edge = Edge(loaded=both)
    edge.page.published_at[:] = time.monotonic()
    edge.page.queued_tokens[0, 1, 0] = 7
    answers = [await call(edge.app, "GET", f"/load{model}") for model in ("", "?model=the-model", "?model=other")]
    assert [json.loads(answer.body)["waiting_tokens"] for answer in answers] == [7, 0, 7]
    assert (await call(edge.app, "GET", "/load?model=none")).status == 404

"""What is counted of a request: how it ended, where its time went, and never a label that a client chose."""

import json
import random
from typing import Any

import pytest

from server.frontend.request_log import RequestMetrics
from server.metrics.registry import Registry
from server.requests.work import Trace
from tests.server.edge import Edge, call, worked_on
from tests.tiers import full
from wire.metrics import POWERS, Recorder

PATH = "/v1/embeddings"


def drained(*traces: Trace) -> dict[str, Any]:
    recorder = Recorder()
    request_metrics = RequestMetrics(recorder)
    for trace in traces:
        request_metrics.record(trace)
    return recorder.drain()


def counts(of: dict[str, Any]) -> dict[tuple[str, ...], float]:
    return {tuple(key): value for *key, value in of["counts"]}


def sums(of: dict[str, Any]) -> dict[tuple[str, ...], tuple[int, float]]:
    """Of each histogram, how many values and their sum."""
    return {tuple(key): (sum(cells[:-1]), cells[-1]) for *key, cells in of["histograms"]}


def answered_trace(**changes: Any) -> Trace:
    fields: dict[str, Any] = {
        "route": PATH,
        "status": 200,
        "stage": "respond",
        "model": "m",
        "request_class": "bulk",
        "encoding": "base64",
        "num_items": 3,
        "num_tokens": 12,
        "seqlens": [4, 1, 7],
        "num_truncated": 1,
        "num_body_bytes": 100,
        "num_bytes": 5000,
        "read_seconds": 0.01,
        "tokenize_seconds": 0.02,
        "queue_seconds": 0.03,
        "compute_seconds": 0.04,
        "respond_seconds": 0.05,
        "total_seconds": 0.2,
    }
    return Trace(**{**fields, **changes})


def test_scores_are_counted_apart_from_embeddings() -> None:
    of = drained(answered_trace(is_prediction=True))

    assert counts(of)["te_inputs", "predict"] == 3
    assert sums(of)["te_duration", "predict"] == (1, 0.2)


@pytest.mark.holds("Truncation")
def test_an_answered_request() -> None:
    of = drained(answered_trace(), answered_trace(is_single=True, num_items=1, seqlens=[12]))

    assert counts(of) == {
        ("embedline_requests_total", PATH, "bulk", "200"): 2,
        ("embedline_request_bytes_total",): 200,
        ("embedline_response_bytes_total", "base64"): 10_000,
        ("te_requests", "batch", "ok"): 1,
        ("te_requests", "single", "ok"): 1,
        ("te_inputs", "embed"): 4,
        ("embedline_inputs_total", "m"): 4,
        ("embedline_input_tokens_total", "m"): 24,
        ("embedline_truncated_inputs_total", "m"): 2,
    }
    assert sums(of) == {
        ("embedline_request_duration_seconds", PATH): (2, 0.4),
        ("te_duration", "embed"): (2, 0.4),
        ("embedline_stage_duration_seconds", "read"): (2, 0.02),
        ("embedline_stage_duration_seconds", "tokenize"): (2, 0.04),
        ("embedline_stage_duration_seconds", "queue"): (2, 0.06),
        ("embedline_stage_duration_seconds", "compute"): (2, 0.08),
        ("embedline_stage_duration_seconds", "respond"): (2, 0.1),
        ("embedline_input_length_tokens", "m"): (4, 24),
    }
    lengths = next(cells for name, *_, cells in of["histograms"] if name == "embedline_input_length_tokens")
    assert len(lengths) == len(POWERS) + 2


def test_a_request_that_was_refused_early() -> None:
    trace = Trace(route=PATH, status=429, error="Overloaded", reason="wait", num_bytes=90, read_seconds=0.01)
    of = drained(trace)

    assert counts(of) == {
        ("embedline_requests_total", PATH, "none", "429"): 1,
        ("embedline_response_bytes_total", "other"): 90,
        ("embedline_rejected_total", "wait"): 1,
    }
    assert set(sums(of)) == {
        ("embedline_request_duration_seconds", PATH),
        ("embedline_stage_duration_seconds", "read"),
    }


@pytest.mark.parametrize(
    ("status", "reason", "counted"),
    [
        (400, "invalid", "invalid"),
        (404, "model", "model"),
        (404, "", "route"),
        (503, "", None),  # a health route that says "not ready": nothing was rejected
    ],
)
def test_rejected_by_reason(status: int, reason: str, counted: str | None) -> None:
    trace = Trace(route="other", status=status, reason=reason)
    rejected = {key[1] for key in counts(drained(trace)) if "rejected" in key[0]}

    assert rejected == ({counted} if counted else set())


async def test_overload_says_of_what() -> None:
    edge = Edge(max_requests=1)
    with worked_on(edge):
        await call(edge.app, "POST", PATH, b'{"input":"x"}')
    edge.page.tokens_per_second[:] = 1
    edge.page.admitted_tokens[:] = 100
    await call(edge.app, "POST", PATH, b'{"input":"x"}')
    await call(edge.app, "POST", PATH, b'{"input":["a","a","a","a","a"]}')

    rejected = {key[1]: number for key, number in counts(edge.metrics.drain()).items() if "rejected" in key[0]}
    assert rejected == {"concurrency": 1, "wait": 1, "batch_size": 1}


async def test_the_way_through_the_edge() -> None:
    edge, sent = Edge(), b'{"input":["ab","abcd"],"encoding_format":"base64"}'
    await call(edge.app, "POST", PATH, sent)
    of = edge.metrics.drain()
    assert counts(of)["embedline_request_bytes_total",] == len(sent)
    assert counts(of)["embedline_response_bytes_total", "base64"] > 80
    assert counts(of)["te_requests", "batch", "ok"] == 1
    assert sums(of)["embedline_input_length_tokens", "the-model"] == (2, 6)
    for stage in ("read", "tokenize", "respond"):
        assert sums(of)["embedline_stage_duration_seconds", stage][0] == 1


def series(registry: Registry) -> set[str]:
    return {line.rpartition(" ")[0] for line in registry.text().splitlines() if not line.startswith("#")}


@pytest.mark.holds("Log lines cannot be forged", "Metrics")
@pytest.mark.parametrize("num_requests", [1000, *full(100_000)])
async def test_strange_requests_add_no_series(num_requests: int) -> None:
    """Paths, methods, models, formats, keys and ids that clients choose are no labels."""
    rng = random.Random(1)

    def strange(index: int) -> tuple[str, str, bytes]:
        word = "".join(rng.choices("abcdefgh/%.", k=8)) + str(index)
        if index % 3 == 0:
            return rng.choice(["GET", "POST", "DELETE", "PUT"]), f"/{word}", b""
        body = {"input": "x", "model": word, "user": word}
        if index % 3 == 1:
            body["encoding_format"] = word
        return "POST", PATH, json.dumps(body).encode()

    edge, registry = Edge(), Registry([])
    for few in (range(50), range(50, num_requests)):
        before = series(registry)
        for method, path, body in map(strange, few):
            await call(edge.app, method, path, body, {"x-request-id": f"id{body.hex()[:60]}", "x-api-key": path})
        registry.absorb(edge.metrics.drain())
    after = series(registry)
    assert after == before
    assert any('route="other"' in name for name in after)
    assert any('reason="method"' in name or 'reason="route"' in name for name in after)
    assert len(after) <= 2000

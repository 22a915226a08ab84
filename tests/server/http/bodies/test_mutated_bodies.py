"""Mutated bodies on every route, through the application and a real tokenizer: always an answer, never a fault of ours.

tests/server/dialects/test_body_fuzz.py looks for echoes in what decoders say; this goes the whole way.
"""

import asyncio
import contextlib
import copy
import json
import random
import socket
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, cast

import pytest

from batch_manager.client import BatchManagers
from server.dialects.table import ROUTES
from server.requests.pipeline import Pipeline
from server.requests.work import Trace
from tests.server.edge import Edge, call, good_body, state_with_everything
from tests.server.mutations import mutate
from tests.server_e2e.expected import minilm
from tests.tiers import full
from tests.tokenizer_pool.scripted import num_live, until
from tokenizer_pool.client import TokenizerPool
from tokenizer_pool.messages import TokenizerSpec
from tokenizer_pool.tokenizer import Tokenizer
from tokenizer_pool.worker import Worker
from wire.connection import Link, serve
from wire.metrics import Recorder

PATHS = sorted({route.path for route in ROUTES})
MAX_SEQLEN = 16  # as the state that the edge gets says

# What a field may be replaced by, or a list get more of.
WEIRD: list[Any] = [
    *(0, -1, 5, 2**31, 2**63, 2**64, -(2**63) - 1, 99999999999999999999, 10**400, 0.5, 1e308, True, False, None),
    *("", " ", "a", "\0", "\ufeff", "\U0001f642" * 9, "query", "left", "bytes", "word " * 300, "x" * 5000, "[SEP]"),
    *([], [[]], [[], []], [[], [5]], [[5], []], [[], [99999999999999999999]], [[-1]], [101, 102], [["a", "b"]]),
    ["a", 5],
    *({}, {"text": "a"}, [{"text": ""}], [{}], [[[5]]], {"a": {"a": {}}}, ["a"] * 5, [""] * 3, [None]),
]
FIELDS = ["dimensions", "encoding_format", "truncate", "truncation_direction", "prompt_name", "normalize", "raw_scores"]
FIELDS += ["top_n", "top_k", "return_documents", "instruction", "instruct", "rank_fields", "max_tokens_per_doc"]
FIELDS += ["input_type", "outputs", "aggregation_strategy", "add_special_tokens", "skip_special_tokens", "parameters"]
FIELDS += ["model"]
HEADERS: list[dict[str, str]] = [{}, {}, {}, {"accept": "application/octet-stream"}, {"x-embedline-class": "bulk"}]
HEADERS += [{"request-timeout-ms": "60000"}, {"request-timeout-ms": "-0"}, {"content-encoding": "gzip"}]


def mutated(rng: random.Random, body: bytes) -> bytes:
    """Some of its values replaced, and then perhaps some of its bytes."""
    value = json.loads(body)
    for _ in range(rng.randint(0, 2)):
        replace(rng, value)
    if rng.random() < 0.5:
        value[rng.choice(FIELDS)] = copy.deepcopy(rng.choice(WEIRD))
    changed = bytearray(json.dumps(value, ensure_ascii=rng.random() < 0.5).encode())
    for _ in range(rng.choice([0, 0, 1, 2])):
        mutate(rng, changed)
    return bytes(changed)


def replace(rng: random.Random, value: Any) -> None:
    """One value, at any depth."""
    places: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not places:
        return
    place = rng.choice(places)
    if isinstance(value[place], dict | list) and rng.random() < 0.5:
        replace(rng, value[place])
    else:
        value[place] = copy.deepcopy(rng.choice(WEIRD))


def hostile(good: bytes) -> Iterator[bytes]:
    """What JSON may hide, beside what the route knows."""
    inside, deep = good[:-1] + b",", 1_000_000
    yield b"\xef\xbb\xbf" + good
    yield inside + b'"other":' + b"[" * 64 + b"]" * 64 + b"}"
    yield inside + b'"other":' + b"[" * deep + b"]" * deep + b"}"
    yield inside + b'"other":' + b'{"a":' * deep + b"1" + b"}" * deep + b"}"
    yield b"[" * deep
    for field in (*json.loads(good), "other"):
        for value in (b"1" * 100_000, b"NaN", b"1e999", b'"\\ud800"', b'"\x00"', b'"\\u0000"', b"[" * 65 + b"]" * 65):
            yield inside + b'"%b":%b}' % (field.encode(), value)  # a key that is there twice


@contextlib.asynccontextmanager
async def edge_with_tokenizer(instruction: str | None = None) -> AsyncIterator[tuple[Edge, list[Trace]]]:
    """An edge over a real tokenizer worker, and the traces of its requests. With an instruction the model is a
    generative reranker."""
    spec = TokenizerSpec(folder=str(minilm()), max_seqlen=MAX_SEQLEN)
    worker = Worker([Tokenizer(spec)], models=["the-model"], metrics=Recorder())
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/socket")
        server = await serve(listener, worker.received, worker.accepted, worker.lost)
        pool = TokenizerPool([partial(Link, f"{folder}/socket")], max_seqlens=[MAX_SEQLEN])
        pool.open()
        await until(lambda: num_live(pool) == 1)
        loaded = state_with_everything()
        loaded["models"][0]["instruction"] = instruction
        loaded["models"][0]["info"]["vocab_size"] = 30_522
        traces: list[Trace] = []
        edge = Edge(max_bytes=20_000_000, loaded=loaded)
        pipeline = Pipeline(edge.admission, pool, cast(BatchManagers, edge.managers))
        edge.change(pipeline=pipeline, finished=traces.append)
        try:
            yield edge, traces
        finally:
            pool.close()
            server.close()
            await worker.finish()


async def answer(edge: Edge, traces: list[Trace], path: str, body: bytes, headers: dict[str, str]) -> int:
    """The status, which is no fault of ours, of an answer in the shape of an answer."""
    called = await call(edge.app, "POST", path, body, headers)
    trace = traces.pop()
    edge.managers.submitted.clear()
    while not edge.managers.arrivals.empty():
        edge.managers.arrivals.get_nowait()
    assert called.status < 500, (path, body[:300], called)
    assert trace.error != "EngineFailed", (path, body[:300], called)
    if called.status != 200:
        assert isinstance(json.loads(called.body), dict), (path, body[:300], called)
    return called.status


@pytest.mark.holds("Errors")
@pytest.mark.parametrize("instruction", [None, "be strict"])
@pytest.mark.parametrize("num_requests", [1000, *full(50_000)])
def test_mutated_bodies_on_every_route(
    num_requests: int, instruction: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(13)
    seeds = {path: good_body(path) for path in PATHS}

    async def run() -> Counter[int]:
        statuses: Counter[int] = Counter()
        async with edge_with_tokenizer(instruction) as (edge, traces):
            before = [await answer(edge, traces, path, seeds[path], {}) for path in PATHS]
            for _ in range(num_requests):
                path = rng.choice(PATHS)
                body = mutated(rng, seeds[path])
                statuses[await answer(edge, traces, path, body, rng.choice(HEADERS))] += 1
            assert [await answer(edge, traces, path, seeds[path], {}) for path in PATHS] == before
            assert before.count(200) > len(PATHS) // 2
        return statuses

    statuses = asyncio.run(run())

    assert statuses.keys() <= {200, 400, 404, 413, 415, 422, 424}, statuses
    assert min(statuses[200], statuses[400], statuses[422]) > num_requests // 50, statuses
    assert caplog.records == []


@pytest.mark.holds("Errors")
@pytest.mark.parametrize("path", PATHS)
async def test_what_json_may_hide(path: str) -> None:
    """A mark of byte order, depth, digits, NaN, lone surrogates, NUL, and keys that are there twice."""
    statuses: Counter[int] = Counter()
    async with edge_with_tokenizer() as (edge, traces):
        for body in hostile(good_body(path)):
            statuses[await answer(edge, traces, path, body, {})] += 1
    assert statuses.keys() <= {200, 400, 422}

"""What each form of an answer costs: bytes, and a frontend's CPU time to encode and write it.

    python -m benchmarks.answer_forms [--rows N] [--dimensions D] [--seconds S] [--write]

Runs the encoder of /v1/embeddings in this process, and writes to a Unix socket that another process empties. It
measures neither HTTP's head, nor the engine, nor what a client does with an answer.
"""

import argparse
import asyncio
import math
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import uvloop

from benchmarks.measuring.report import Report
from engine.types import OutputKind
from server.dialects.answers import Answer, openai_error
from server.dialects.openai import encode
from server.dialects.route import Call, RequestOptions
from server.dialects.row_answers import EVERY_CONTAINER, Container, DType, Encoding, RowForm
from server.http.compression import compressed
from server.requests.models import ModelsState, ModelTable, ServedModel
from server.requests.work import Embedded, EmbedRequest, RequestContext, Trace
from tokenizer_pool.messages import Truncation
from wire.page import Page

_EMPTY = "import socket; s = socket.socket(fileno=0)\nwhile s.recv(1 << 20): pass"
_MIN_ROUNDS = 5
_RAW = {dtype.value: (RowForm(dtype=dtype), Container.RAW) for dtype in DType}
_FORMS = {
    "JSON, floats": (RowForm(), Container.JSON),
    "JSON, base64": (RowForm(Encoding.BASE64), Container.JSON),
    "JSON, base64 of int8": (RowForm(Encoding.BASE64, DType.INT8), Container.JSON),
    "JSON, int8": (RowForm(dtype=DType.INT8), Container.JSON),
    "msgpack, floats": (RowForm(), Container.MSGPACK),
    "npy": (RowForm(), Container.NPY),
    **{f"bytes, {name}": form for name, form in _RAW.items()},
}
_CODINGS = ("gzip", "zstd")


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one form."""

    num_bytes: int
    encode_seconds: float  # of CPU time, as what follows
    whole_seconds: float  # encoded and written
    peak_bytes: int  # of memory while it is encoded, the answer included


class Job:
    """The same rows in any form."""

    def __init__(self, num_rows: int, dimensions: int) -> None:
        rows = np.random.default_rng(0).standard_normal((num_rows, dimensions), np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        self._embedded = Embedded(rows, 20 * num_rows, np.zeros(num_rows, np.uint8))
        model = ServedModel(
            index=0,
            name="the-model",
            dimensions=dimensions,
            max_seqlen=512,
            vocab_size=30522,
            normalize=True,
            outputs=OutputKind.POOLED,
            truncation=Truncation.RIGHT,
        )
        self._models, self._request = (
            ModelTable([model]),
            EmbedRequest(model=model, items=["a"] * num_rows, context=RequestContext()),
        )

    async def encoded(self, form: RowForm, container: Container, coding: str = "") -> Answer:
        """One answer."""
        options, trace = RequestOptions(accepts=container), Trace("POST", "/", "the-request")
        state = ModelsState(Page.create(num_frontends=1, num_managers=1, num_models=1))
        call = Call(state, 1, trace, openai_error, RequestContext(), options, self._models)
        call.set_form(form, offers=EVERY_CONTAINER)
        answer = await encode(call, self._request, self._embedded)
        return await compressed(answer, coding.encode()) if coding else answer


async def cpu_seconds(work: Callable[[], Awaitable[object]], seconds: float) -> float:
    """Of this process for one time, the mean."""
    await work()
    rounds, ends = 0, time.perf_counter() + seconds
    began = time.process_time()
    while time.perf_counter() < ends or rounds < _MIN_ROUNDS:
        await work()
        rounds += 1
    return (time.process_time() - began) / rounds


async def measure(encoded: Callable[[], Awaitable[Answer]], writer: asyncio.StreamWriter, seconds: float) -> Cost:
    """One form."""

    async def whole() -> None:
        writer.write((await encoded()).body)
        await writer.drain()

    tracemalloc.start()
    answer = await encoded()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    encode_seconds = await cpu_seconds(encoded, seconds)
    return Cost(len(answer.body), encode_seconds, await cpu_seconds(whole, seconds), peak)


async def measure_all(job: Job, sink: socket.socket, seconds: float) -> dict[str, Cost]:
    """Every form, and floats in JSON compressed; `sink` is where they are written."""
    _, writer = await asyncio.open_unix_connection(sock=sink)
    named = {name: (*form, "") for name, form in _FORMS.items()}
    named |= {f"JSON, floats, {coding}": (*_FORMS["JSON, floats"], coding) for coding in _CODINGS}
    costs = {name: await measure(partial(job.encoded, *asked), writer, seconds) for name, asked in named.items()}
    writer.close()
    await writer.wait_closed()
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--dimensions", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement; two for each form")
    parser.add_argument("--write", action="store_true", help="put the result into benchmarks/results")
    arguments = parser.parse_args()
    job = Job(arguments.rows, arguments.dimensions)
    ours, theirs = socket.socketpair()
    with (
        subprocess.Popen([sys.executable, "-c", _EMPTY], stdin=theirs.fileno()),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        theirs.close()
        costs = runner.run(measure_all(job, ours, arguments.seconds))
    size = f"{arguments.rows} rows of {arguments.dimensions}"
    report = Report("answer-forms", f"Forms of an answer: {size}", packages=("numpy", "orjson", "pybase64", "uvloop"))
    floats, raw = costs["JSON, floats"], costs["bytes, float32"]
    for name, cost in costs.items():
        report.row(
            {
                "form": name,
                "bytes": f"{cost.num_bytes:,}",
                "encode ms": f"{1000 * cost.encode_seconds:.3f}",
                "encode and write ms": f"{1000 * cost.whole_seconds:.3f}",
                "times less CPU than JSON floats": f"{floats.whole_seconds / cost.whole_seconds:.1f}",
                "times fewer bytes than float32": f"{raw.num_bytes / cost.num_bytes:.2f}",
                "peak memory MiB": f"{cost.peak_bytes / 2**20:.1f}",
            }
        )
    num_numbers = arguments.rows * arguments.dimensions
    report.note(f"CPU time of this process, the mean of as many rounds as fit into {arguments.seconds:g} s.")
    report.note("Peak memory is what Python and numpy took while encoding, the answer included; rows are not counted.")
    report.note(
        f"float32 takes {4 * num_numbers:,} bytes, bits {arguments.rows * math.ceil(arguments.dimensions / 8):,}."
    )
    report.note("gzip and zstd: level 1, as --compress-answers has them; without backports.zstd nothing is compressed.")
    report.note("Not shown: HTTP's head, TLS, the engine, what a client needs to read the answer.")
    report.finish(write=arguments.write)


if __name__ == "__main__":
    main()

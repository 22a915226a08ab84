"""The servers that are compared: how each is started, asked and stopped. Each is a process group of its own."""

import contextlib
import dataclasses
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
ROUTE = "/v1/embeddings"
RERANK_ROUTE = "/rerank"
_STOP_SECONDS = 20.0
_POLL_SECONDS, _POLL_SHARE = 0.02, 0.005  # of the time since the start: each question leaves a line in a log
# llama.cpp: the best of those tried, with 4 to 64 slots and 512 to 4,096 tokens a batch. A connection that is kept open
# holds a thread of HTTP; with fewer threads than connections, requests wait for seconds.
_LLAMA_SIZES = {"--parallel": 8, "--batch-size": 2048, "--ubatch-size": 2048, "--ctx-size": 4096, "--threads-http": 96}


class ServerFailed(Exception):
    """It did not start, or did not answer; one line."""


_NO_DRAIN = {"EMBEDLINE_DRAIN_DELAY": "0", "DRAIN_DELAY": "0"}  # the second is its name in older commits


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a server is started. `{port}`, `{cache}` and `{metrics_port}`, a second port, in its command and environment
    are filled in."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None  # to start it in; None: here
    port: int = 0  # that its files name; 0: any that is free
    documents_field: str = "documents"  # of its /rerank


def embedline(*flags: str, name: str = "Embedline", root: Path = ROOT) -> Recipe:
    """Ours, with its default engine and a cache of its own. `root`: the folder of the source, perhaps an older one."""
    command = (sys.executable, "-P", "-m", "embedline", "serve", "--port", "{port}", "--prometheus-port", "0", *flags)
    # as a variable, since older commits that are compared know no such flag
    return Recipe(name, command, {"PYTHONPATH": str(root), "XDG_CACHE_HOME": "{cache}", **_NO_DRAIN})


def infinity(environment: Path, model: Path) -> Recipe:
    """infinity-emb on torch, in the environment of benchmarks/peers/make_env.sh."""
    return _infinity("infinity-emb (torch)", environment, "--engine", "torch", "--model-id", str(model))


def infinity_onnx(environment: Path, model: Path, *, pooling: str) -> Recipe:
    """infinity-emb on ONNX Runtime. The model is named "." since it finds no ONNX file by an absolute path."""
    flags = ("--engine", "optimum", "--onnx-disable-optimize", "--model-id", ".", "--pooling-method", pooling)
    return dataclasses.replace(_infinity("infinity-emb (ONNX)", environment, *flags), folder=model)


def _infinity(name: str, environment: Path, *flags: str) -> Recipe:
    address = ("--host", "127.0.0.1", "--port", "{port}", "--url-prefix", "/v1")
    program = str(environment.absolute() / "bin/infinity_emb")
    # for mixed lengths on a CPU batches of 8 take less time than its default, 32; all else as it comes
    command = (program, "v2", "--served-model-name", "m", "--device", "cpu", "--batch-size", "8")
    switches = {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TORCHINDUCTOR_CACHE_DIR": "{cache}"}
    return Recipe(name, (*command, *flags, *address), switches)


def plain(model: Path, *, is_reranker: bool = False) -> Recipe:
    """FastAPI over sentence-transformers, or over its CrossEncoder."""
    library = "cross-encoder" if is_reranker else "sentence-transformers"
    return _plain("FastAPI + sentence-transformers", sys.executable, library, model)


def plain_openvino(environment: Path, model: Path) -> Recipe:
    """FastAPI over sentence-transformers with its OpenVINO backend, in the environment of make_openvino.sh."""
    python = str(environment.absolute() / "bin/python")
    return _plain("FastAPI + sentence-transformers (OpenVINO)", python, "sentence-transformers-openvino", model)


def plain_onnx(environment: Path, model: Path) -> Recipe:
    """FastAPI over ONNX Runtime, in the environment of benchmarks/peers/make_env.sh, with an exported model."""
    return _plain("FastAPI + ONNX Runtime", str(environment.absolute() / "bin/python"), "onnxruntime", model)


def _plain(name: str, python: str, library: str, model: Path) -> Recipe:
    command = (python, "-m", "benchmarks.peers.plain_server", library, str(model), "{port}")
    return Recipe(name, command, {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"})


def vllm(environment: Path, model: Path, *, dtype: str = "auto") -> Recipe:
    """vLLM for CPUs, in the environment of benchmarks/peers/make_vllm.sh. By itself it computes weights in float32 in a
    type of 16 bits, which its log names."""
    name = "vLLM" if dtype == "auto" else f"vLLM {dtype}"
    command = (str(environment.absolute() / "bin/vllm"), "serve", str(model), "--runner", "pooling", "--dtype", dtype)
    # its default, 0.92 of the machine's memory, is refused where other servers have some of it
    address = ("--served-model-name", "m", "--gpu-memory-utilization", "0.3", "--host", "127.0.0.1", "--port", "{port}")
    switches = {"DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CACHE_ROOT": "{cache}"}
    return Recipe(name, (*command, *address), switches)


def tei(program: Path, model: Path) -> Recipe:
    """text-embeddings-inference, built by its own instructions. A request may have 128 texts, all else as it comes."""
    command = (str(program.absolute()), "--model-id", str(model), "--hostname", "127.0.0.1", "--port", "{port}")
    sizes = ("--max-client-batch-size", "128", "--prometheus-port", "{metrics_port}")
    name = f"TEI ({program.name})"
    return Recipe(name, (*command, *sizes), {"HF_HUB_OFFLINE": "1"}, documents_field="texts")


def llama(folder: Path, weights: str, *flags: str) -> Recipe:
    """llama.cpp's server as benchmarks/peers/make_llama.sh made it; weights: f32, f16, bf16 or q8_0."""
    command = (str(folder.absolute() / "bin/llama-server"), "--embedding", "--pooling", "mean", "--offline")
    model = ("-m", str(folder.absolute() / f"{weights}.gguf"), "--host", "127.0.0.1", "--port", "{port}")
    sizes = (str(word) for pair in _LLAMA_SIZES.items() for word in pair)
    return Recipe(f"llama.cpp {weights}", (*command, *model, *sizes, *flags))


class RunningServer:
    """A started server, which may not be ready yet."""

    def __init__(self, recipe: Recipe, *, cache: Path, log: Path | None = None) -> None:
        """log: the file that its output is added to; without one it is forgotten."""
        self.name = recipe.name
        self.documents_field = recipe.documents_field
        self.port = recipe.port or free_port()
        values = {"port": str(self.port), "cache": str(cache), "metrics_port": str(free_port())}
        self._log = tempfile.TemporaryFile() if log is None else log.open("a+b")  # noqa: SIM115 - closed by `stop`
        self.process = subprocess.Popen(
            [part.format_map(values) for part in recipe.command],
            env=os.environ | {name: value.format_map(values) for name, value in recipe.environment.items()},
            cwd=recipe.folder,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            process_group=0,  # not a session of its own: the kernel shares cores between sessions first
        )
        self._began = time.perf_counter()

    def wait_for_answer(self, text: str, *, patience: float = 600.0) -> float:
        """Seconds from the start to the first answer. Raises ServerFailed."""
        return self.wait_for(lambda seconds: self.embed([text], patience=seconds), patience=patience)

    def wait_for(self, ask: Callable[[float], object], *, patience: float) -> float:
        """The same for any question, which is given the seconds that its answer may take."""
        while (left := self._began + patience - time.perf_counter()) > 0:
            if self.process.poll() is not None:
                raise ServerFailed(f"{self.name} ended with {self.process.returncode}: {self._last_line()}")
            with contextlib.suppress(OSError, http.client.HTTPException, ServerFailed):
                ask(left)
                return time.perf_counter() - self._began
            time.sleep(max(_POLL_SECONDS, _POLL_SHARE * (time.perf_counter() - self._began)))
        raise ServerFailed(f"{self.name} did not answer within {patience:.0f} s of its start: {self._last_line()}")

    def embed(self, texts: Sequence[str], *, patience: float = 60.0) -> NDArray[np.float32]:
        """float32 [N, D]. Raises ServerFailed, OSError, HTTPException."""
        answer = self.ask(ROUTE, {"input": texts, "model": "m"}, patience=patience)
        return np.array([item["embedding"] for item in answer["data"]], np.float32)

    def score(self, query: str, documents: Sequence[str], *, patience: float = 60.0) -> NDArray[np.float32]:
        """float32 [N], in the order of the documents. Raises ServerFailed, OSError, HTTPException."""
        body = {"query": query, self.documents_field: documents, "model": "m"}
        answer = self.ask(RERANK_ROUTE, body, patience=patience)
        scores = np.empty(len(documents), np.float32)
        for item in answer if isinstance(answer, list) else answer["results"]:
            scores[item["index"]] = item["score"] if isinstance(answer, list) else item["relevance_score"]
        return scores

    def ask(self, route: str, body: object, *, patience: float = 60.0) -> Any:
        """What it answers to this JSON. Raises ServerFailed, OSError, HTTPException."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience)) as connection:
            connection.request("POST", route, json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        if answer.status != 200:
            raise ServerFailed(f"{self.name} answered {answer.status}")
        return json.loads(content)

    def stop(self, *, seconds: float = _STOP_SECONDS) -> None:
        """Politely, and after these seconds not."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        self._log.close()

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "it said nothing"


@contextlib.contextmanager
def running(recipe: Recipe, *, cache: Path) -> Iterator[RunningServer]:
    """A server that is gone after the block."""
    server = RunningServer(recipe, cache=cache)
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port

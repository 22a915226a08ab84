"""A whole server for a model whose weights are pickles: converted at its first start, refused in one line where that
can't be, and nothing half done after a signal or a kill."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from tests.engine.convert.pickles import Touch
from tests.engine.store.local_hub import COMMIT, MODEL, serving_hub
from tests.server_e2e.expected import minilm
from tests.server_e2e.running import PATIENCE, ROOT, Server, children, is_running, serving

pytestmark = [pytest.mark.full, pytest.mark.holds("Pickles are read only by one isolated process")]

TEXTS = ["hello world", "embed this, please", "a"]
# Stops the converting process when it imports torch, after it has settled and before it opens the file.
STOPS_THE_CHILD = """
import os, signal, sys
if "engine.convert.process" in sys.orig_argv:
    def stop(event, args):
        if event == "import" and args[0] == "torch":
            os.kill(os.getpid(), signal.SIGSTOP)
    sys.addaudithook(stop)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """MiniLM as authors saved such models years ago."""
    folder = tmp_path / "a model"
    shutil.copytree(minilm(), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(load_file(minilm() / "model.safetensors"), folder / "pytorch_model.bin")
    return folder


def flags(folder: Path) -> tuple[str, ...]:
    return ("--model-id", str(folder), "--compiled-cache", str(folder.parent / "cache"))


def rows_of(server: Server) -> NDArray[np.float32]:
    reply = server.embed(TEXTS, encoding_format="bytes")
    assert reply.status == 200, reply.body
    return np.frombuffer(reply.body, "<f4").reshape(len(TEXTS), -1)


def said(server: Server, words: str) -> bool:
    return any(words in line for line in server.log.lines)


def copies(folder: Path) -> list[str]:
    return [path.name for path in (folder.parent / "cache" / "converted").iterdir() if path.is_dir()]


def test_its_rows_are_those_of_its_safetensors_twin_and_it_is_converted_once(
    folder: Path, tmp_path: Path, real_server: Server
) -> None:
    for is_first in (True, False):
        with serving(*flags(folder), folder=tmp_path) as server:
            rows = rows_of(server)
            (model,) = server.request("GET", "/info").json()["models"]
            assert server.stop() == 0
        assert np.array_equal(rows, rows_of(real_server))
        assert model["fingerprint"] == real_server.request("GET", "/info").json()["models"][0]["fingerprint"]
        assert model["source"] == "local folder, pytorch_model.bin converted to safetensors"
        assert said(server, "to safetensors, in ") == is_first
        assert said(server, "found the converted weights") != is_first
        assert len(copies(folder)) == 1
    assert (folder / "pytorch_model.bin").is_file()
    assert not list(folder.glob("*.safetensors"))


@pytest.mark.holds("Network access")
def test_from_the_hub_pickles_are_fetched_where_there_is_nothing_else(folder: Path, tmp_path: Path) -> None:
    (folder / "own.bin").write_bytes(b"of something else")
    with serving_hub(folder) as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub"), "NO_PROXY": "*"}
        asked = []
        for more in ({}, {"HF_HUB_OFFLINE": "1"}):
            hub_flags = ("--model-id", MODEL, "--compiled-cache", str(tmp_path / "cache"))
            with serving(*hub_flags, folder=tmp_path, environment={**environment, **more}) as server:
                assert len(rows_of(server)) == len(TEXTS)
                (model,) = server.request("GET", "/info").json()["models"]
                assert model["source"].endswith(", pytorch_model.bin converted to safetensors")
                assert model["revision"] == COMMIT
                assert server.stop() == 0
            asked.append(len(hub.asked))
        assert asked[0] == asked[1]
        assert not any(path.endswith("own.bin") for path in hub.paths())


def refused(folder: Path, *others: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "embedline", "serve", "--port", "0", *flags(folder), *others],
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(folder.parent)},
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    (line,) = (line for line in ended.stderr.splitlines() if " INFO " not in line)
    return line


def harm(folder: Path) -> tuple[str, ...]:
    torch.save({"a": torch.ones(3), "b": Touch(folder.parent / "canary")}, folder / "pytorch_model.bin")
    return ()


def never(folder: Path) -> tuple[str, ...]:
    return ("--convert", "never")


def no_cache(folder: Path) -> tuple[str, ...]:
    return ("--compiled-cache", "/dev/null")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (harm, "pytorch_model.bin is refused: it holds more than tensors"),
        (never, "embedline convert "),
        (no_cache, "embedline convert "),
    ],
)
def test_what_is_refused(spoil: Callable[[Path], tuple[str, ...]], words: str, folder: Path) -> None:
    assert words in refused(folder, *spoil(folder))
    assert not (folder.parent / "canary").exists()


@contextlib.contextmanager
def converting(folder: Path) -> Iterator[tuple[Server, int]]:
    """A server in the middle of a conversion, and the converting process."""
    (folder.parent / "module").mkdir()
    (folder.parent / "module" / "sitecustomize.py").write_text(STOPS_THE_CHILD)
    environment = {"PYTHONPATH": f"{ROOT}:{folder.parent / 'module'}"}
    with contextlib.closing(Server(*flags(folder), folder=folder.parent, environment=environment)) as server:
        server.log.wait_for("converting pytorch_model.bin")
        while not (stopped := [pid for pid in children(server.process.pid) if is_stopped(pid)]):
            assert server.process.poll() is None
        yield server, stopped[0]


def is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


@pytest.mark.holds("Shutdown")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_leaves_nothing(number: int, folder: Path) -> None:
    with converting(folder) as (server, child):
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == 0
        assert not is_running(child)
    assert copies(folder) == []
    assert not [line for line in server.log.lines if " INFO " not in line]


def test_after_kill_9_the_next_start_converts_it(folder: Path, tmp_path: Path) -> None:
    with converting(folder) as (server, child):
        server.process.kill()
        server.process.wait(PATIENCE)
        while is_running(child):
            pass
    (left,) = copies(folder)
    assert left.endswith(".partial")
    with serving(*flags(folder), folder=tmp_path) as again:
        assert len(rows_of(again)) == len(TEXTS)
        assert copies(folder) == [left.removesuffix(".partial")]
        assert again.stop() == 0


def test_a_killed_child_is_said_in_a_line(folder: Path) -> None:
    with converting(folder) as (server, child):
        os.kill(child, signal.SIGKILL)
        assert server.process.wait(PATIENCE) == 2
        server.log.join()
    assert "the converting process ended early (SIGKILL)" in server.log.lines[-1]
    assert copies(folder) == []

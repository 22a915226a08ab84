"""What a process is started with, a start that fails half way, what it said last, and an end that does not come."""

import asyncio
import dataclasses
import errno
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, cast

import pytest

from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.child import ChildEvents, ChildProcess, Plan, SpawnError
from server.supervisor.spawn import EarlyEngine, spawn
from tests.server_e2e.running import children
from wire.control import Json, ProcessStart

PLAN = Plan(role="engine", index=0, module="engine", python="python3", start=None, fds=())


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("4", "4")])
async def test_numpy_has_one_thread_for_a_product_unless_it_is_told(
    given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_with: dict[str, str] = {}

    def refuse(*_: object, env: Mapping[str, str], **__: object) -> NoReturn:
        started_with.update(env)
        raise OSError(errno.ENOENT, "No such file or directory")

    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", given)
    monkeypatch.setattr("server.supervisor.spawn.subprocess.Popen", refuse)
    with pytest.raises(SpawnError, match="engine 0 can't be started: python3: No such file or directory"):
        await ChildProcess(PLAN, cast(ChildEvents, None)).start()
    assert started_with["OPENBLAS_NUM_THREADS"] == expected


class Events:
    """What a child reports, noted."""

    def __init__(self) -> None:
        self.exits: list[int] = []
        self.has_exited = asyncio.Event()

    def child_exited(self, child: ChildProcess, returncode: int) -> None:
        self.exits.append(returncode)
        self.has_exited.set()

    def metrics_arrived(self, deltas: Json) -> None:
        pass


def num_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def a_sleeper(tmp_path: Path, events: Events) -> ChildProcess:
    """A process that ends when it is told to, and not otherwise."""
    return ChildProcess(dataclasses.replace(PLAN, python=str(a_python(tmp_path))), cast(ChildEvents, events))


def a_python(tmp_path: Path) -> Path:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o700)
    return python


@pytest.mark.faults
@pytest.mark.holds("When a process dies")
@pytest.mark.parametrize("what", ["socket.socketpair", "subprocess.Popen", "os.pidfd_open"])
async def test_a_start_for_which_there_are_no_descriptors_leaves_nothing(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    child = a_sleeper(tmp_path, Events())
    before, others = num_open(), children(os.getpid())
    with monkeypatch.context() as patch:
        patch.setattr(f"server.supervisor.child.{what}", refuse)
        with pytest.raises(SpawnError, match=r"engine 0 can't be started: .*: Too many open files"):
            await child.start()
    assert (num_open(), children(os.getpid()), child.pid) == (before, others, None)
    child.seen = 7
    await child.start()  # the next try is as the first
    assert child.seen == 0
    assert child.pid is not None
    assert await child.stop(0)


@pytest.mark.faults
@pytest.mark.holds("Shutdown")
async def test_a_process_that_the_kernel_holds_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As if it waited for a disk: SIGKILL is sent and nothing happens."""
    signals: list[int] = []
    events = Events()
    child = a_sleeper(tmp_path, events)
    await child.start()
    with monkeypatch.context() as patch:
        patch.setattr("server.supervisor.child._KILL_SECONDS", 0.01)
        patch.setattr(signal, "pidfd_send_signal", lambda _, number: signals.append(number))
        await child.stop(0)
    assert signals == [signal.SIGKILL]
    assert (child.is_dying, events.exits) == (True, [])
    assert caplog.messages == [f"engine 0 (process {child.pid}) can't be killed and is left behind"]
    await child.stop(0)
    assert (child.pid, child.is_dying, events.exits) == (None, False, [-signal.SIGKILL])


async def test_a_process_that_was_started_early_is_the_first_and_others_follow_it(tmp_path: Path) -> None:
    events = Events()
    early = spawn(str(a_python(tmp_path)), "engine", ())
    plan = dataclasses.replace(PLAN, python=str(a_python(tmp_path)), early=early)
    child = ChildProcess(plan, cast(ChildEvents, events))
    await child.start()
    assert child.pid == early.process.pid
    await child.stop(0)
    await child.start()
    assert child.pid not in (None, early.process.pid)
    await child.stop(0)
    assert events.exits == [-signal.SIGKILL] * 2


@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("is_seen", [False, True])
def test_an_early_engine_is_ended_unless_somebody_saw_its_end(is_taken: bool, is_seen: bool) -> None:
    """Also where it was taken, and the server then fails before it starts to watch it."""
    before, others = num_open(), children(os.getpid())
    early = EarlyEngine()
    early.start(Settings(models=(ModelSettings(devices="cpu"),)))
    assert len(children(os.getpid())) == len(others) + 1
    taken = early.take() if is_taken else None
    assert early.is_taken is is_taken
    if taken is not None:
        listener, spawned = taken
        listener.close()
        if is_seen:
            spawned.end()
    early.end()
    assert (num_open(), children(os.getpid())) == (before, others)


@pytest.mark.parametrize(
    ("model", "python"),
    [
        (ModelSettings(devices="cpu", engine="fake"), sys.executable),
        (ModelSettings(devices="cpu", engine="transformers"), sys.executable),
        (ModelSettings(devices="cuda"), sys.executable),
        (ModelSettings(devices="cpu"), "/bin/sh"),
    ],
)
def test_no_engine_is_started_early_that_openvino_would_not_serve(model: ModelSettings, python: str) -> None:
    early = EarlyEngine()
    early.start(Settings(models=(model,), engine_python=python))
    assert early.take() is None


AT_ITS_IMPORT = "import signal\nsignal.raise_signal(signal.SIGILL)\n"
IN_ITS_ROLE = """
import signal
from wire.child import run
from wire.control import ProcessStart

async def serve(child, start):
    {enters}
    signal.raise_signal(signal.SIGABRT)

run(serve, ProcessStart)
"""


@pytest.mark.holds("When a process dies", "The log")
@pytest.mark.parametrize(
    ("code", "number", "stage"),
    [
        (AT_ITS_IMPORT, signal.SIGILL, "launch"),
        (IN_ITS_ROLE.format(enters="pass"), signal.SIGABRT, "setup"),
        (IN_ITS_ROLE.format(enters="await child.enter('store')"), signal.SIGABRT, "store"),
    ],
)
async def test_the_last_words_of_a_process_that_dies_right_after_them_are_known(
    code: str,
    number: int,
    stage: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Even if the supervisor is busy meanwhile, and so learns of the words and of the death at once."""
    (tmp_path / "dies.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    start = ProcessStart(title="engine 0", index=0, log_level="info")
    plan = dataclasses.replace(PLAN, module="dies", python=sys.executable, start=start)
    events = Events()
    child = ChildProcess(plan, cast(ChildEvents, events))
    await child.start()
    await asyncio.sleep(0)  # START leaves
    assert child.pid is not None
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - to be busy
    await events.has_exited.wait()
    assert (events.exits, child.stage) == ([-number], stage)
    stack = capfd.readouterr().err
    assert "Fatal Python error: " in stack
    assert f'File "{tmp_path}/dies.py", line ' in stack

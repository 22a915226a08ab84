"""Processes that die while they start: where they were is told, and no fault is tried a third time."""

import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.messages import LoadOptions
from tests.engine.engines import fake_options, load_options
from tests.engine.test_static import save_static
from tests.engine.test_worker import EngineProcess
from tests.engine.tiny_models import save_tame
from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import ADDRESS, PATIENCE, Server
from tests.tiers import full, full_but
from wire import control

pytestmark = pytest.mark.faults

MODULE = "tests.server_e2e.processes.dying_worker"
STAGES = {
    "fake": ("fake: import", "fake: load", "first batches", "canary"),
    "static": ("static: import", "static: weights"),
    "transformers": tuple(f"transformers: {stage}" for stage in ("import", "device", "weights", "self-test")),
    "openvino": tuple(f"openvino: {stage}" for stage in ("import", "compiled model", "conversion", "self-test")),
    "fused": tuple(
        f"fused: {stage}" for stage in ("import", "weights", "precision", "keeping", "probe", "check", "graphs")
    ),
}
CASES = [(engine, stage) for engine, stages in STAGES.items() for stage in stages]


def options_of(engine: str, folder: Path) -> LoadOptions:
    if engine == "fake":
        return fake_options()
    if engine == "static":
        return load_options(save_static(folder / "model"))
    path = save_tame("bert", folder / "model")
    others: dict[str, Any] = {"quantization": "fp8", "cache_dir": str(folder / "cache")}
    return load_options(path, **(others if engine == "fused" else {}))


def stages_told(process: EngineProcess) -> list[str]:
    """Until it dies or is ready."""
    told: list[str] = []
    with contextlib.suppress(EOFError):
        while True:
            for kind, _, payload in process.supervisor.receive():
                if kind == control.READY:
                    return told
                if kind == control.STAGE:
                    told.append(control.decode(payload)["stage"])
    return told


@pytest.mark.holds("When a process dies")
@pytest.mark.parametrize(("engine", "stage"), full_but([("fake", "fake: load")], CASES))
def test_a_death_in_each_stage_of_an_engine(
    engine: str, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIES_IN", stage)
    monkeypatch.setenv("DIES_BY", "SIGSEGV")
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are too deep for a socket's path
        process = EngineProcess(Path(folder), options_of(engine, tmp_path), engine=engine, module=MODULE)
        with contextlib.closing(process):
            assert stages_told(process)[-1] == stage
            assert process.process.wait(PATIENCE) == -signal.SIGSEGV
    assert whole_stack(capfd.readouterr().err.splitlines())


def whole_stack(lines: list[str]) -> bool:
    """Whether the frames of the thread that died are there, from the fault to the outermost."""
    text = "\n".join(lines)
    _, _, rest = text.partition("Fatal Python error: Segmentation fault\n")
    _, _, frames = rest.partition("\nCurrent thread 0x")
    innermost, _, others = frames.partition("in _enter_and_die\n")
    return innermost.count("\n") == 1 and f"{MODULE.replace('.', '/')}.py" in others and "in <module>\n" in others


@pytest.fixture
def dying(tmp_path: Path) -> Callable[..., Server]:
    """Starts a server whose engine's process is `dying_worker`, or what else a shell is to do in its place."""

    def start(stage: str, by: str, *, instead: str = "") -> Server:
        python = tmp_path / "python"
        worker = f'shift 3; exec "{sys.executable}" -P -m {MODULE} "$@"'
        python.write_text(
            f'#!/bin/sh\ncase "$*" in *engine.worker*) {instead or worker};; esac\nexec "{sys.executable}" "$@"\n'
        )
        python.chmod(0o700)
        environment = {"DIES_IN": stage, "DIES_BY": by}
        return Server(*FAKE, "--engine-python", str(python), folder=tmp_path, environment=environment)

    return start


@pytest.mark.holds("When a process dies", "The log")
@pytest.mark.parametrize("stage", ["first batches", *full("fake: import")])
def test_the_same_fault_twice_ends_the_server_with_its_stage_and_both_stacks(
    stage: str, dying: Callable[..., Server]
) -> None:
    with contextlib.closing(dying(stage, "SIGSEGV")) as server:
        assert server.process.wait(PATIENCE) == 1
        server.log.join()
        lines = server.log.lines
    ends = [number for number, line in enumerate(lines) if "engine 0 has ended: " in line]
    how = f'SIGSEGV in the stage "{stage}"'
    assert [lines[number].partition("has ended: ")[2] for number in ends] == [how, how]
    assert whole_stack(lines[: ends[0]])
    assert whole_stack(lines[ends[0] : ends[1]])
    assert lines[-1].endswith(f"CRITICAL supervisor: engine 0 can't be started: {how}")


@pytest.mark.full
@pytest.mark.holds("When a process dies")
def test_a_fault_before_the_first_word(dying: Callable[..., Server]) -> None:
    with contextlib.closing(dying("", "", instead="kill -ILL $$")) as server:
        assert server.process.wait(PATIENCE) == 1
        server.log.join()
        assert server.log.lines[-1].endswith('engine 0 can\'t be started: SIGILL in the stage "launch"')


@pytest.mark.holds("When a process dies", "Readiness")
def test_one_that_is_killed_is_tried_again_and_readiness_says_where_it_died(dying: Callable[..., Server]) -> None:
    with contextlib.closing(dying("fake: load", "SIGKILL")) as server:
        server.port = int(server.log.wait_for(ADDRESS)[0][1])
        how = 'SIGKILL in the stage "fake: load"'
        seen = 0
        for _ in range(3):
            _, seen = server.log.wait_for(f"engine 0 has ended: {how}$", after=seen)
        server.log.wait_for("frontend 0 is ready")
        answer = server.request("GET", "/readyz")
        assert (answer.status, answer.body.decode()) == (503, f"no engine is ready (engine 0 ended: {how})")
        assert server.stop() == 0


@pytest.mark.full
@pytest.mark.holds("The log")
def test_the_stack_of_a_supervisor_that_dies_is_in_the_log_too(tmp_path: Path) -> None:
    with contextlib.closing(Server(*FAKE, folder=tmp_path)) as server:
        server.log.wait_for(ADDRESS)
        server.process.send_signal(signal.SIGSEGV)
        assert server.process.wait(PATIENCE) == -signal.SIGSEGV
        server.log.join()
        assert "Fatal Python error: Segmentation fault" in server.log.lines

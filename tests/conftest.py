"""What all tests share: which of them run, how kernels are run, one cache of compiled models, and two servers."""

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from engine.machine import cuda_driver
from tests.server_e2e.expected import FAKE, PAYLOAD_LIMIT
from tests.server_e2e.running import CACHE_HOME, Server, serving
from tests.tiers import tier_asked


def _refuse_other_machines(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook, which sees every connection of this process."""
    if event == "socket.connect" and isinstance(address := arguments[1], tuple):
        assert str(address[0]).startswith(("127.", "::1", "localhost")), f"a test reaches out to {address}"


sys.addaudithook(_refuse_other_machines)

# Triton looks at this when a kernel is defined: without a GPU its interpreter runs them.
if not cuda_driver.find().gpus:
    os.environ["TRITON_INTERPRET"] = "1"

# Which markers take a test out of the default tier, and which tier it belongs to then.
REST = ("full", "gpu")
TIERS = ("default", "rest", "all", "nightly")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=TIERS,
        help="default: what `make test` runs; rest: what `make test-all` adds; all: both, if none is given; "
        "nightly: the others, and also chosen by -m nightly",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """asyncio's own loop, and uvloop's too for tests that are marked `both_loops`: both are served on, and each orders
    sockets and callbacks in its own way."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if item.get_closest_marker("both_loops"):
        import uvloop

        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays, so the garbage collector need not look through it, which takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the tests of the tier asked for. -m and -k choose among these."""
    tier = tier_asked(config.getoption("--tier"), config.getoption("-m"))
    kept: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        its = tier_of(item)
        (kept if its == tier or (tier == "all" and its != "nightly") else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = kept
    for item in kept:
        if item.get_closest_marker("faults"):
            item.add_marker(pytest.mark.flaky(reruns=1))  # CONTRIBUTING.md says why


def tier_of(item: pytest.Item) -> str:
    """The one tier that a test belongs to: default, rest or nightly."""
    if item.get_closest_marker("nightly"):
        return "nightly"
    return "rest" if any(item.get_closest_marker(marker) for marker in REST) else "default"


@pytest.fixture
def reached(record_property: Callable[[str, object], None]) -> Callable[[str, str], None]:
    """Notes what was measured for a row of docs/reliability.md: `reached("R8", "0 of 2,412 requests lost")`."""
    return lambda bar, figure: record_property("reached", f"{bar}: {figure}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists what was measured, and why tests of faults were tried again."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"failed at first: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    figures = [value for report in reports for name, value in report.user_properties if name == "reached"]
    for figure in sorted(set(figures)):
        terminalreporter.write_line(str(figure))


@pytest.fixture(scope="session", autouse=True)
def compiled_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for compiled models, empty at first, that all workers of a run share. Servers keep theirs there."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "compiled-cache"
    folder.mkdir(exist_ok=True, mode=0o700)
    os.environ[CACHE_HOME] = str(folder)
    return folder


@pytest.fixture(scope="session")
def fake_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The fake engine, for tests that leave the server as it was. In the end no line of its log is an error."""
    flags = (*FAKE, "--payload-limit", str(PAYLOAD_LIMIT))
    with serving(*flags, folder=tmp_path_factory.mktemp("fake-server")) as running:
        yield running
        assert not [line for line in running.log.lines if " ERROR " in line or "Traceback" in line]


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The default model by the default engine, for tests that leave the server as it was."""
    with serving(folder=tmp_path_factory.mktemp("real-server")) as running:
        yield running

"""An uncaught error in a callback ends a process; one that names modules goes on after those of others."""

import asyncio
import dataclasses
import sys
from pathlib import Path
from typing import cast

import pytest

from server.supervisor.child import ChildEvents, ChildProcess, Plan
from tests.server.supervisor.test_child import Events
from wire.control import ProcessStart

ROLE = """
import asyncio, json, sys
from wire.child import run
from wire.control import ProcessStart

async def serve(child, start):
    asyncio.get_running_loop().call_soon({callback})
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    sys.exit(7)

run(serve, ProcessStart, exits_on_errors_in={modules})
"""
PLAN = Plan(role="frontend", module="failing", start=None, fds=())
IN_JSON = 'json.loads, "{"'


@pytest.mark.holds("When a process dies")
@pytest.mark.parametrize(
    ("callback", "modules", "code"),
    [
        (IN_JSON, None, 1),
        (IN_JSON, {"json.decoder"}, 1),
        ('int, "x"', {"json.decoder"}, 7),
    ],
)
async def test_an_uncaught_error_in_a_callback(
    callback: str, modules: set[str] | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing.py").write_text(ROLE.format(callback=callback, modules=modules))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    start = ProcessStart(title="frontend 0", index=0, log_level="info")
    events = Events()
    child = ChildProcess(dataclasses.replace(PLAN, python=sys.executable, start=start), cast(ChildEvents, events))
    await child.start()
    await asyncio.wait_for(events.has_exited.wait(), 300)
    assert events.exits == [code]

"""What a process is started with."""

import asyncio
import errno
from collections.abc import Mapping
from typing import NoReturn, cast

import pytest

from server.supervisor.child import ChildEvents, ChildProcess, Plan, SpawnError

PLAN = Plan(role="engine", index=0, module="engine", python="python3", start=None, fds=())


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("4", "4")])
def test_numpy_has_one_thread_for_a_product_unless_it_is_told(
    given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_with: dict[str, str] = {}

    def refuse(*_: object, env: Mapping[str, str], **__: object) -> NoReturn:
        started_with.update(env)
        raise OSError(errno.ENOENT, "No such file or directory")

    async def start() -> None:
        with pytest.raises(SpawnError, match="engine 0 can't be started: python3: No such file or directory"):
            await ChildProcess(PLAN, cast(ChildEvents, None)).start()

    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", given)
    monkeypatch.setattr("server.supervisor.child.subprocess.Popen", refuse)
    asyncio.run(start())
    assert started_with["OPENBLAS_NUM_THREADS"] == expected

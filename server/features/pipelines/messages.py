"""What frontends and the pipelines process have in common: runs, what is known of pipelines, how a frontend asks, and
START of that process.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from server.features.rpc import Caller
from server.requests.errors import DeadlineExceeded, NotFound

_GRACE_SECONDS = 2.0  # for a run that is over its time to say so itself


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinesStart:
    """The START message of the pipelines process."""

    listener_fd: int  # where frontends connect
    file: str  # --pipelines
    http_path: str  # the Unix socket where frontends take the requests of its steps
    secret: str  # with which these act for an API key
    max_runs: int  # at a time


class Run(msgspec.Struct, frozen=True):
    """One request."""

    pipeline: str
    owner: str  # of the API key; "" where the server has no keys
    seconds: float | None  # that the client gives it; None = as many as the pipeline may take
    body: bytes  # as it came
    is_msgpack: bool = False  # the body; else it is JSON
    answers_msgpack: bool = False


class Listed(msgspec.Struct, frozen=True):
    """A pipeline, as GET /pipelines shows it."""

    name: str
    description: str
    steps: list[str]
    timeout: float  # seconds
    input: dict[str, Any]  # JSON schemas
    output: dict[str, Any]


class PipelinesClient(Caller):
    """A frontend's end. The process says what it has as soon as it is there."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "pipelines", lost="ended during this run")
        self._listing: dict[str, Listed] | None = None  # the newest

    async def listing(self) -> list[Listed]:
        """All pipelines. Raises NotReady before the process was there for the first time."""
        if self._listing is None:
            await self.wait_for_it()
        assert self._listing is not None
        return list(self._listing.values())

    async def run(self, run: Run, deadline: float) -> bytes:
        """The answer's body. `deadline` is a time.monotonic(). Raises RequestError; cancelling it cancels the run."""
        pipeline = run.pipeline
        await self.wait_for_it()
        assert self._listing is not None
        if pipeline not in self._listing:
            raise NotFound("no pipeline has this name; GET /pipelines lists them", param="name")
        left, timeout = deadline - time.monotonic(), self._listing[pipeline].timeout
        if left <= 0:
            raise DeadlineExceeded("the deadline had passed before the pipeline began")
        fields = msgspec.structs.asdict(run) | {"seconds": left if left < timeout else None}
        calling = self.call("run", timeout_s=None, **fields)
        del run, fields  # its body is the other process's now
        try:
            async with asyncio.timeout(min(left, timeout) + _GRACE_SECONDS):
                return bytes((await calling).body)
        except TimeoutError:
            raise DeadlineExceeded(f"pipeline {pipeline} did not end in time, and did not say why") from None

    def is_there(self, says: memoryview) -> None:
        listing = msgspec.msgpack.decode(says, type=list[Listed])
        self._listing = {one.name: one for one in listing}
        super().is_there(says)

"""A frontend's end of the connection to the pipelines process: runs that are answered, refused in time or cancelled."""

import asyncio
import itertools
import time

import msgspec

from server.features.pipelines import messages
from server.features.pipelines.messages import Listed, Run
from server.requests.errors import DeadlineExceeded, NotFound, NotReady, RequestError
from wire.connection import Link

_START_SECONDS = 3.0  # to wait for a process that is being started again
_GRACE_SECONDS = 2.0  # for a run that is over its time to say so itself
_RETRY_SECONDS = 2.0  # what clients are told


class PipelinesClient:
    """Call open and close, each once."""

    def __init__(self, path: str) -> None:
        self._link = Link(path, on_frame=self._received, on_up=lambda: None, on_down=self._lost)
        self._lives = asyncio.Event()  # the process has said what it has
        self._listing: dict[str, Listed] | None = None  # the newest
        self._runs: dict[int, asyncio.Future[bytes]] = {}  # as many as there are open requests
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()

    def open(self) -> None:
        """Begin to connect."""
        self._link.open()

    def close(self) -> None:
        """What waits for an answer is refused."""
        self._link.close()
        self._lost()

    async def listing(self) -> list[Listed]:
        """All pipelines. Raises NotReady before the process was there for the first time."""
        if self._listing is None:
            await self._wait_for_it()
        assert self._listing is not None
        return list(self._listing.values())

    async def run(self, run: Run, deadline: float) -> bytes:
        """The answer's body. `deadline` is a time.monotonic(). Raises RequestError; cancelling it cancels the run."""
        pipeline = run.pipeline
        await self._wait_for_it()
        assert self._listing is not None
        if pipeline not in self._listing:
            raise NotFound("no pipeline has this name; GET /pipelines lists them", param="name")
        left, timeout = deadline - time.monotonic(), self._listing[pipeline].timeout
        if left <= 0:
            raise DeadlineExceeded("the deadline had passed before the pipeline began")
        number = next(self._numbers)
        self._runs[number] = self._loop.create_future()
        run = msgspec.structs.replace(run, seconds=left if left < timeout else None)
        self._link.send(messages.RUN, number, [msgspec.msgpack.encode(run)])
        del run  # its body is the other process's now
        try:
            async with asyncio.timeout(min(left, timeout) + _GRACE_SECONDS):
                return await self._runs[number]
        except (TimeoutError, asyncio.CancelledError) as error:
            self._link.send(messages.CANCEL, number)
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(f"pipeline {pipeline} did not end in time, and did not say why") from None
            raise
        finally:
            del self._runs[number]

    async def _wait_for_it(self) -> None:
        if self._lives.is_set():
            return
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._lives.wait()
        except TimeoutError:
            raise _unavailable("the pipelines process is down") from None

    def _received(self, kind: int, frame_id: int, payload: memoryview) -> None:
        if kind == messages.LISTING:
            self._listing = {one.name: one for one in messages.decode_listing(payload)}
            self._lives.set()
            return
        future = self._runs.get(frame_id)  # None if its caller waits no more
        if future is None or future.done():
            return
        if kind == messages.RESULT:
            future.set_result(bytes(payload))
        else:
            future.set_exception(messages.decode_refused(payload))

    def _lost(self) -> None:
        self._lives.clear()
        for future in self._runs.values():
            if not future.done():
                future.set_exception(_unavailable("the pipelines process ended during this run"))


def _unavailable(message: str) -> RequestError:
    return NotReady(message, retry_after=_RETRY_SECONDS, reason="pipelines_unavailable")

"""The process of pipelines: `python -P -m server.features.pipelines.main <control fd> <supervisor pid>`. It runs
pipelines for requests, so many at a time, and says what became of each in the words of requests' errors.

It alone runs users' code. That code was given on the command line, and may do what this user may. If it ends this
process, the supervisor starts it again; if it blocks the event loop, the watchdog ends it.
"""

import asyncio
import logging
import socket
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

from embedline import AsyncClient, RequestFailed
from embedline.pipelines import InvalidInput, Pipeline, PipelineTimeout, StepFailed, StepTimeout
from server.features.pipelines.bodies import Bodies, check_msgpack
from server.features.pipelines.loading import PipelinesUnusable, load
from server.features.pipelines.messages import Listed, PipelinesStart, Run
from server.features.rpc import RpcCall, Service
from server.requests.errors import (
    RETRY_AFTER,
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    NotFound,
    NotReady,
    Overloaded,
    RequestError,
)
from wire.child import Child, StartError, run
from wire.connection import FrameConnection
from wire.metrics import Recorder

Body = Callable[[], Awaitable[list[bytes]]]  # what makes the body of a run's answer, in parts

_MAX_OF_KEY = 3  # runs of a key for each place that is free
_MAX_CHARACTERS = 1000  # of what a step says of a wrong input
_BUSY = {429: Overloaded, 503: NotReady}  # what this server answered to a step, again and again

logger = logging.getLogger("embedline.server")


class Clients:
    """Clients of this very server, one for each API key that requests came with: there are as many as the server has
    keys."""

    def __init__(self, path: str, secret: str) -> None:
        self._url = f"unix://{quote(path)}"
        self._secret = secret
        self._clients: dict[str, AsyncClient] = {}

    def of(self, owner: str) -> AsyncClient:
        """The client of a key; its requests count as that key's own."""
        if owner not in self._clients:
            self._clients[owner] = AsyncClient(self._url, api_key=f"{self._secret}.{owner}")
        return self._clients[owner]

    def close(self) -> None:
        """Close all clients; what is under way raises Cancelled."""
        for client in self._clients.values():
            client.close()


class Runs:
    """Runs pipelines, `most` at a time; others are refused, for they would wait for the same event loop. Frontends
    bound the bodies.

    A key has at most three times as many as are free beside it, so that other keys find places.
    """

    def __init__(
        self, pipelines: Mapping[str, Pipeline[..., Any]], clients: Clients, *, most: int, metrics: Recorder
    ) -> None:
        """Raises PipelinesUnusable."""
        self._pipelines = {name: (pipeline, Bodies(pipeline)) for name, pipeline in pipelines.items()}
        self._clients = clients
        self._most = most
        self._metrics = metrics
        self.num_open = 0
        self._of_keys: Counter[str] = Counter()
        # None is the connection's, for which one answer of each key waits
        self._turns = WeakKeyDictionary[FrameConnection, defaultdict[str | None, asyncio.Lock]]()

    def listing(self) -> list[Listed]:
        """The pipelines that this process has."""
        return [bodies.listed for _, bodies in self._pipelines.values()]

    async def answer(self, call: RpcCall) -> None:
        """Run what a call asks for. Raises RequestError.

        For a frontend one answer at a time is made and sent, so that large ones are not all in memory: it counts each
        as held before the next has come. Keys take turns.
        """
        asked = Run(owner=call.owner, body=call.take_body(), **call.fields)
        turns = self._turns.setdefault(call.connection, defaultdict(asyncio.Lock))
        try:
            async with self.run(asked) as body, turns[asked.owner], turns[None]:
                call.answer(None, await body())
                await call.connection.drained()
        except RequestError:
            raise
        except Exception:
            logger.exception("the pipeline %s failed because of a bug of the server", asked.pipeline)
            raise EngineFailed("the pipelines process failed on this run") from None

    @asynccontextmanager
    async def run(self, run: Run) -> AsyncIterator[Body]:
        """The body of the answer, when the pipeline has run; the run is open until the block ends. Raises
        RequestError."""
        if run.pipeline not in self._pipelines:  # the file has changed, and this process was started again
            raise NotFound("no pipeline has this name; GET /pipelines lists them", param="name")
        if self.num_open >= self._most or self._has_its_share(run.owner):
            self._metrics.count("embedline_pipeline_runs_total", run.pipeline, "refused")
            raise Overloaded("too many pipelines are running", reason="pipelines_running")
        began, outcome = time.perf_counter(), "cancelled"
        self.num_open += 1
        self._of_keys[run.owner] += 1
        try:
            yield await self._answer(run)
            outcome = "ok"
        except Exception:
            outcome = "failed"
            raise
        finally:
            self.num_open -= 1
            self._of_keys -= Counter([run.owner])  # drops those at 0
            self._metrics.count("embedline_pipeline_runs_total", run.pipeline, outcome)
            seconds = time.perf_counter() - began
            self._metrics.observe("embedline_pipeline_seconds", run.pipeline, value=seconds)

    def _has_its_share(self, owner: str) -> bool:
        return owner != "" and self._of_keys[owner] >= _MAX_OF_KEY * (self._most - self.num_open)

    async def _answer(self, run: Run) -> Body:
        pipeline, bodies = self._pipelines[run.pipeline]
        if run.is_msgpack:
            await check_msgpack(run.body)
        inputs = bodies.read(run.body, is_msgpack=run.is_msgpack)
        try:
            async with asyncio.timeout(run.seconds):
                output = await pipeline.run(self._clients.of(run.owner), **inputs)
        except InvalidInput as error:
            message = str(error)[:_MAX_CHARACTERS]  # or it could be as large as the input
            raise InvalidRequest(message.encode(errors="replace").decode()) from None  # any text can be sent then
        except (StepTimeout, PipelineTimeout) as error:
            raise DeadlineExceeded(str(error)) from None
        except TimeoutError:
            raise DeadlineExceeded(f"pipeline {run.pipeline} did not end before the request's deadline") from None
        except StepFailed as error:
            raise _failed(run.pipeline, error) from None
        return partial(_body, run, bodies, output)


async def _body(run: Run, bodies: Bodies, output: Any) -> list[bytes]:
    try:
        return await bodies.write(output, is_msgpack=run.answers_msgpack)
    except Exception as error:
        logger.error("pipeline %s: its output can't be sent: %s", run.pipeline, error)
        raise EngineFailed(f"pipeline {run.pipeline} gave an output that can't be sent") from None


def _failed(pipeline: str, error: StepFailed) -> RequestError:
    """Neither the answer nor the log has the message of what the step raised: it may repeat a text."""
    cause = error.__cause__
    if isinstance(cause, RequestFailed) and cause.status in _BUSY:
        message = f"step {error.step} found this server too busy"
        return _BUSY[cause.status](message, retry_after=RETRY_AFTER["step_busy"])
    if cause is None:
        return EngineFailed(str(error))
    frames = traceback.extract_tb(cause.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "no place"
    logger.error("pipeline %s: step %s failed: %s at %s", pipeline, error.step, type(cause).__name__, place)
    return EngineFailed(f"step {error.step} failed: {type(cause).__name__}")


async def serve(child: Child, start: PipelinesStart) -> None:
    """The role. Raises StartError."""
    clients = Clients(start.http_path, start.secret)
    try:
        runs = Runs(load(start.file), clients, most=start.max_runs, metrics=child.metrics)
    except PipelinesUnusable as error:
        raise StartError(str(error)) from None
    child.metrics.watch("embedline_pipelines_running", child.title, level=lambda: runs.num_open)
    service = Service("pipelines", runs.answer, says=runs.listing(), cancels=True)
    await service.start(socket.socket(fileno=start.listener_fd))
    child.ready()
    await child.stopping.wait()
    await service.stop()
    clients.close()


if __name__ == "__main__":
    run(serve, PipelinesStart, exits_on_errors_in=())

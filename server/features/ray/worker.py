"""One worker of a backfill on Ray: a server, and the shards of the job that this worker is told to write.

This module goes to Ray's processes by value, so it imports nothing of ours at its top but what goes with it.
"""

import asyncio
import io
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server.features.ray.child import Child, StartFailed

if TYPE_CHECKING:
    from server.features.backfill.job import Job
    from server.features.backfill.servers import Servers

PROBLEM = "problem"  # the key of an answer that says why there is no other
_QUIET = ("--log-level", "warning", "--request-log", "off", "--frontends", "1")
_STARTS = 3  # tries
_CHILD_SECONDS = 10.0


class Worker:
    """A Ray actor. Its answers are plain values, as neither side need have the other's classes."""

    def __init__(
        self, config: str, arguments: Sequence[str], options: Mapping[str, Any], folder: str, start_seconds: float
    ) -> None:
        """`options`: of backfill.job, with this worker's number. `folder`: where the command was started."""
        import embedline

        package = Path(embedline.__file__).parent
        sys.path.insert(0, str(package / "_app" if (package / "_app").is_dir() else package.parent))  # as the launcher
        os.chdir(folder)
        self._config, self._arguments, self._start_seconds = config, (*arguments, *_QUIET), start_seconds
        self._child: Child | None = None  # that is ready
        self._options = options
        self._job: Job | None = None

    def start(self) -> dict[str, Any]:
        """The model, once the server is ready."""
        from server.features.backfill.errors import BackfillError

        try:
            with self._servers() as servers:
                served = servers.described()
        except (StartFailed, BackfillError) as error:
            return {PROBLEM: str(error)}
        return {"model": dict(served.model), "dimensions": served.dimensions}

    def compute(self, shards: Sequence[int]) -> dict[str, Any]:
        """Write these shards of the job that OUT has; how many rows and tokens that were."""
        from embedline.client.preference import CancellationToken
        from server.features.backfill.errors import BackfillError
        from server.features.backfill.progress import Progress

        progress = Progress(0, 0, stream=io.StringIO())
        try:
            with self._servers() as servers:
                self._job = self._job or self._opened()
                plan = self._job.begin(servers.described())
                self._job.compute(plan, shards, servers, progress, CancellationToken())
        except (StartFailed, BackfillError) as error:
            return {PROBLEM: str(error)}
        return dict(progress.figures())

    def stop(self) -> None:
        """Let go of OUT, and end the server."""
        if self._job is not None:
            self._job.close()
        if self._child is not None:
            self._child.stop(_CHILD_SECONDS)

    def _opened(self) -> "Job":
        from server.features.backfill.job import Job, Options

        return Job(Options(**self._options))

    def _started(self) -> Child:
        """Raises StartFailed. A GPU may still be taken by a server that has just ended."""
        deadline = time.monotonic() + self._start_seconds
        for num_left in reversed(range(_STARTS)):
            child = Child(self._config, self._arguments)
            try:
                # Nobody asks there: the Unix socket is this user's alone.
                asyncio.run(child.start(socket.create_server(("127.0.0.1", 0)), deadline - time.monotonic()))
                return child
            except StartFailed as error:
                if not num_left or time.monotonic() > deadline:
                    raise StartFailed(f"a worker did not start in {_STARTS - num_left} tries: {error}") from None
        raise AssertionError("the last try returns or raises")

    def _servers(self) -> "Servers":
        """Raises StartFailed. Ray starts a worker that ended again, with what it was told last."""
        from embedline.client.preference import CancellationToken
        from server.features.backfill.servers import Servers

        self._child = self._child or self._started()
        options = self._options
        url = f"unix://{self._child.socket}"
        return Servers([url], None, model=options["model"], ask=options["ask"], token=CancellationToken())

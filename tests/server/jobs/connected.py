"""A client of the jobs process and its service, on a Unix socket."""

import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from server.features.jobs.calls import answering
from server.features.rpc import Caller, Service


def listening(path: Path) -> socket.socket:
    """As the supervisor binds it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


@contextlib.asynccontextmanager
async def connected(folder: Path, calls: object) -> AsyncIterator[Caller]:
    """A client whose calls are answered by the methods of an object."""
    service, client = Service("jobs", answering(calls)), Caller(str(folder / "jobs.sock"), "jobs")
    await service.start(listening(folder / "jobs.sock"))
    client.open()
    try:
        yield client
    finally:
        client.close()
        await service.stop()

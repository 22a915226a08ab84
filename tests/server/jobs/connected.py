"""A client of the jobs process and its service, on a Unix socket."""

import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from server.features.jobs.rpc import Handler, JobsClient, Service


def listening(path: Path) -> socket.socket:
    """As the supervisor binds it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


@contextlib.asynccontextmanager
async def connected(folder: Path, handlers: Mapping[str, Handler]) -> AsyncIterator[JobsClient]:
    """A client whose calls these answer."""
    service, client = Service(handlers), JobsClient(str(folder / "jobs.sock"))
    await service.start(listening(folder / "jobs.sock"))
    client.open()
    try:
        yield client
    finally:
        client.close()
        await service.stop()

"""The process of the planted feature, and its plan."""

import asyncio
import logging
import socket
from dataclasses import dataclass

from server.features.echo.feature import ECHO, EchoFlags  # type: ignore[import-not-found]  # it is planted there

from server.settings.settings import Settings
from server.supervisor.child import Need, Plan
from server.supervisor.socket_folder import FeatureSockets
from wire.child import Child, run
from wire.connection import FrameConnection
from wire.connection import serve as serve_connections
from wire.control import ControlRequest, Json

logger = logging.getLogger("embedline.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoStart:
    listener_fd: int
    http_path: str
    secret: str
    word: str


def plan(settings: Settings, sockets: FeatureSockets) -> Plan:
    word = settings.of(EchoFlags).echo
    assert word is not None
    return Plan(
        role=ECHO.name,
        module="server.features.echo.process",
        fds=(sockets.calls.fd,),
        start=EchoStart(listener_fd=sockets.calls.fd, http_path=sockets.http.path, secret=sockets.secret, word=word),
        to_go_on=Need.NEVER,
        oom_score=150,
        takes_state=True,
    )


async def serve(child: Child, start: EchoStart) -> None:
    tasks = set[asyncio.Task[None]]()

    async def answer(connection: FrameConnection, number: int, owner: str) -> None:
        child.metrics.count("embedline_echoes_total")
        status = await asked(start, owner)
        connection.send(1, number, [f"{start.word} {status}".encode()])

    def received(connection: FrameConnection, kind: int, number: int, payload: memoryview) -> None:
        task = asyncio.create_task(answer(connection, number, bytes(payload).decode()))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def changed(state: Json) -> None:
        if state["draining"]:
            logger.info("echo: the server drains")

    child.on_state = changed
    changed(await child.request(ControlRequest.STATE))
    listener = socket.socket(fileno=start.listener_fd)
    server = await serve_connections(listener, received, lambda _: None, lambda _: None)
    child.ready()
    await child.stopping.wait()
    server.close()


async def asked(start: EchoStart, owner: str) -> int:
    """The status with which this server answers the process, which acts for the owner's key."""
    reader, writer = await asyncio.open_unix_connection(start.http_path)
    head = f"GET /info HTTP/1.1\r\nhost: localhost\r\nx-api-key: {start.secret}.{owner}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode())
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


if __name__ == "__main__":
    run(serve, EchoStart)

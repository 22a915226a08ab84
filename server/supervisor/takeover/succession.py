"""One server after another on the same ports: when this one begins to accept, and when its successor does."""

import asyncio
import logging

from server.http.http_server import HttpServer
from server.settings.flag import SettingsError
from server.supervisor.listening.opening import Ports
from server.supervisor.supervisor import Supervisor
from server.supervisor.takeover.handover import Handover, RunningServer
from server.supervisor.takeover.place import NoPlace, place

logger = logging.getLogger("embedline.supervisor")


class Succession:
    """Ties the supervisor and its monitor port to the server before this one, if there is one, and the one after."""

    def __init__(self, supervisor: Supervisor, ports: Ports, monitoring: HttpServer, *, devices: list[str]) -> None:
        self._supervisor = supervisor
        self._predecessor = ports.predecessor
        self._monitoring = monitoring
        self._uds = ports.uds
        self._server = RunningServer(
            http=ports.http,
            monitor=ports.monitor,
            devices=devices,
            pids=supervisor.pids,
            is_loaded=lambda: supervisor.was_ready,
        )
        self._handover: Handover | None = None
        self._opening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Without a predecessor all is open at once; else once the models are loaded."""
        if self._predecessor is None:
            await self._open()
            return
        self._predecessor.watch()
        self._supervisor.on_ready = self._take_over

    def close(self) -> None:
        """At the very end: a successor may wait for it."""
        if self._handover is not None:
            self._handover.close()

    def _take_over(self) -> None:
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        await self._monitoring.start()
        self._publish()
        self._wait_for_successor()
        if self._predecessor is not None:
            logger.info("this server accepts now, in place of process %d", self._predecessor.pid)
            self._predecessor.drain()

    def _publish(self) -> None:
        if self._uds is None:
            return
        try:
            self._uds.publish()
        except OSError as error:
            logger.error("nobody can connect to the socket of --uds: %s", error.strerror)
        except SettingsError as error:
            logger.error("nobody can connect to this server there: %s", error)

    def _wait_for_successor(self) -> None:
        try:
            handover = Handover(place(*self._server.http.address), self._server, taken=self._taken)
            handover.open()
        except (NoPlace, OSError) as error:
            logger.warning("no server can take over from this one: %s", error)
            return
        self._handover = handover
        self._supervisor.on_stopping = handover.stopping

    def _taken(self, pid: int) -> None:
        self._monitoring.stop_accepting()
        self._supervisor.taken_over(pid)

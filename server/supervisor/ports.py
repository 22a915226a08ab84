"""The ports of one server: how it gets them, when it begins to accept there, and when its successor does.

They are taken over from the running server, passed in by whoever started this one, or bound here. Without a server
before this one everything is open at once, else as soon as the models are loaded.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine import registry
from engine.machine.devices import kind_of
from server.http.server import HttpServer
from server.settings.flag import SettingsError
from server.settings.settings import Settings
from server.supervisor import takeover
from server.supervisor.listeners import MONITOR_NAME, Listeners, UnixPort, address_of, bind, inherited, reserve
from server.supervisor.monitor import bind_monitor
from server.supervisor.supervisor import Supervisor
from server.supervisor.takeover import Handover, NoPlace, Predecessor, RunningServer, check_room, place

logger = logging.getLogger("embedline.supervisor")


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a server, whose sockets all listen already."""

    http: Listeners
    monitor: Listeners | None  # the supervisor's own port
    predecessor: Predecessor | None = None  # whose sockets they are, but for `uds`
    uds: UnixPort | None = None  # a socket for HTTP at a path, published later
    # By the name of a feature: keeps its port, and alone does not listen.
    features: Mapping[str, socket.socket] = field(default_factory=dict)


def open_ports(settings: Settings, devices: Sequence[str]) -> Ports:
    """Opens the ports. `devices` are those of all engines that this server will have. Raises SettingsError."""
    running = _running_server(settings) if settings.takeover else None
    with contextlib.ExitStack() as undo:
        if running is not None:
            undo.callback(running.close)
        uds = None
        if settings.uds is not None:
            uds = UnixPort(settings.uds, predecessor=None if running is None else running.pid)
            undo.callback(uds.close)
        ports = _open_tcp(settings, running, devices)
        undo.pop_all()
    return replace(ports, uds=uds)


def _open_tcp(settings: Settings, running: Predecessor | None, devices: Sequence[str]) -> Ports:
    passed = inherited(os.environ)
    if running is not None:
        monitor = _monitor(settings, running.monitor)
        features = _of_features(settings, may_be_shared=True)
        _make_room(running, devices)  # the last thing that may fail: the running server may have ended then
        return Ports(running.http, monitor, running, features=features)
    if passed:
        return Ports(passed[""], _monitor(settings, passed.get(MONITOR_NAME)), features=_of_features(settings))
    http = Listeners([bind(settings.hostname, settings.port, "--port")])
    try:
        return Ports(http, _monitor(settings, None), features=_of_features(settings))
    except SettingsError:
        http.close()
        raise


def _of_features(settings: Settings, *, may_be_shared: bool = False) -> dict[str, socket.socket]:
    return {
        feature.name: reserve(settings.hostname, port, feature.flag, may_be_shared=may_be_shared)
        for feature, port in settings.features_on()
        if feature.has_port
    }


def _monitor(settings: Settings, given: Listeners | None) -> Listeners | None:
    """The given one, unless the settings name another port or none."""
    if given is not None:
        if settings.prometheus_port in (None, given.address[1]):
            return given
        given.close()
    bound = bind_monitor(settings.hostname, settings.prometheus_port)
    return None if bound is None else Listeners([bound])


def _running_server(settings: Settings) -> Predecessor | None:
    try:
        running = takeover.find(place(*address_of(settings.hostname, settings.port)))
    except NoPlace as error:
        raise SettingsError(f"--takeover: {error}") from None
    if running is None:
        logger.info("no server of this user is at port %d to take over from", settings.port)
    return running


def _make_room(running: Predecessor, devices: Sequence[str]) -> None:
    """Return once this server may load its models beside the running one, or after it. Raises SettingsError."""
    shared = sorted({name for name in devices if kind_of(name) == registry.CUDA} & set(running.offer.devices))
    if shared:
        logger.info(
            "process %d ends first, as both servers need %s; clients wait meanwhile", running.pid, ", ".join(shared)
        )
        running.drain()
        running.wait()
        return
    check_room(running.offer.num_bytes)
    logger.info("process %d serves until this server is ready", running.pid)


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
        """Opens the ports: without a predecessor all at once; else once the models are loaded."""
        if self._predecessor is None:
            await self._open()
            return
        self._predecessor.watch()
        self._supervisor.on_ready = self._take_over

    def close(self) -> None:
        """Closes the ports at the very end: a successor may wait for it."""
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

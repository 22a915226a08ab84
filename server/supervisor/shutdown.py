"""The end of the server: decided once, by a signal, a successor or a fault; then all processes stop, in order.

Who has connected is let in, and nobody after that. Frontends end first, engines last.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.supervisor.child import ChildProcess
from server.supervisor.listeners import Listeners, UnixPort
from server.supervisor.readiness import roles_of

_HANDSHAKE_SECONDS = 0.2  # for handshakes that have begun
_QUEUE_SECONDS = 5.0  # for frontends to accept what waits; under load it takes milliseconds
_LOOK_SECONDS = 0.01  # the kernel tells nobody that a queue has become empty
_EXIT_SECONDS = 5.0  # to refuse what can't be finished, and to exit

logger = logging.getLogger("embedline.supervisor")


@dataclass(frozen=True, slots=True)
class Ending:
    """How the server ends."""

    code: int  # of the process
    message: str = ""  # the last line of the log; "" = none
    delay: float = 0.0  # seconds in which it goes on accepting connections


class Shutdown:
    """Call `begin`; then `drain`, `stop_frontends` and `stop_others` once `ending` has a result.

    restarted_roles  of whose processes those that die are started again: while the server stops fewer and fewer
    """

    def __init__(self, children: Sequence[ChildProcess], http: Sequence[Listeners | UnixPort]) -> None:
        self._roles = roles_of(children)
        self.restarted_roles = set(self._roles)
        self.ending: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._children = children
        self._http = http
        self._hurry = asyncio.Event()

    @property
    def has_begun(self) -> bool:
        """Whether it is decided."""
        return self.ending.done()

    def begin(self, ending: Ending) -> bool:
        """Decide it. False where that was done before."""
        if self.has_begun:
            return False
        self.ending.set_result(ending)
        return True

    def hurry(self) -> None:
        """Nobody needs the server to go on accepting."""
        self._hurry.set()

    def kill(self) -> None:
        """End all processes at once."""
        self.restarted_roles.clear()
        self.hurry()
        for child in self._children:
            child.kill()

    async def drain(self, delay: float, *, was_ready: bool) -> None:
        """Serve on for so long, as balancers go on sending for a while. Then let nobody in any more."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), delay)
        if was_ready:
            await empty_queues(self._http, is_worth_waiting=lambda: "frontend" in self.restarted_roles)

    async def stop_frontends(self, seconds: float) -> None:
        """They have so long to finish their requests. Until then the processes that compute them are restarted."""
        for port in self._http:  # a port closes with the last frontend that serves it
            port.close()
        self.restarted_roles.discard("frontend")
        await self._stop_role("frontend", seconds + _EXIT_SECONDS)

    async def stop_others(self) -> None:
        """They have no work any more. Engines last."""
        self.restarted_roles.clear()
        for role in reversed([role for role in self._roles if role != "frontend"]):
            await self._stop_role(role, _EXIT_SECONDS)

    async def _stop_role(self, role: str, patience: float) -> None:
        children = [child for child in self._children if child.plan.role == role]
        ended = await asyncio.gather(*(child.stop(patience) for child in children))
        if not all(ended):
            logger.error("%d %s process(es) had to be killed after %g s", ended.count(False), role, patience)


async def empty_queues(ports: Sequence[Listeners | UnixPort], *, is_worth_waiting: Callable[[], bool]) -> None:
    """Begin no more handshakes, and wait until the frontends have accepted every connection.

    Where another process goes on serving the sockets there is nothing to do.
    """
    closing = [port for port in ports if not port.kept_elsewhere]
    if not closing:
        return
    for port in closing:
        try:
            port.refuse_new()
        except OSError as error:  # a sandbox that does not know socket filters, such as gVisor
            logger.warning("who connects while the port closes may be reset: %s", error.strerror)
    await asyncio.sleep(_HANDSHAKE_SECONDS)
    deadline = time.monotonic() + _QUEUE_SECONDS
    while num_waiting := sum(port.num_waiting() for port in closing):
        if time.monotonic() > deadline or not is_worth_waiting():
            logger.error("%d connection(s) are reset: no frontend accepted them", num_waiting)
            return
        await asyncio.sleep(_LOOK_SECONDS)

"""The end of the ports: who has connected is let in, nobody else."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from server.supervisor.listening.listeners import Listeners
from server.supervisor.listening.unix_port import UnixPort

_HANDSHAKE_SECONDS = 0.2  # for handshakes that have begun
_QUEUE_SECONDS = 5.0  # for frontends to accept what waits; under load it takes milliseconds
_LOOK_SECONDS = 0.01  # the kernel tells nobody that a queue has become empty

logger = logging.getLogger("embedline.supervisor")


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

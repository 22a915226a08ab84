"""A database that is away for minutes, as one that restarts, does not end a job that runs for days."""

import logging
import threading
from collections.abc import Callable

from embedline.client.preference import CancellationToken
from server.backfill.errors import Stopped
from server.backfill.parts import Content
from server.backfill.sinks.sink import Sink, SinkAway

logger = logging.getLogger("embedline.server")

_WAITS = (1, 2, 4, 8, 15, 30, 60, 60, 60, 60, 60, 60, 60, 60)  # seconds before another try: nine minutes in all


def persistent(sink: Sink, token: CancellationToken) -> Callable[[Content], None]:
    """`sink.put`, tried again while the database is away. Raises Stopped when the token is cancelled meanwhile, and
    what the last try raised."""
    stopped = threading.Event()
    token.watch(stopped.set)

    def put(content: Content) -> None:
        for seconds in _WAITS:
            try:
                return sink.put(content)
            except SinkAway as error:
                logger.warning("%s; it is tried again in %s s", error, seconds)
            if stopped.wait(seconds):
                raise Stopped("stopped by a signal")
        return sink.put(content)

    return put

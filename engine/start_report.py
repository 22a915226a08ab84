"""What an engine process tells the supervisor while its main thread loads a model: that it lives, and what it is at."""

import threading

from wire import control
from wire.blocking import BlockingConnection


class StartReport:
    """Sends heartbeats from its own thread, and stages from the one that loads."""

    def __init__(self, supervisor: BlockingConnection) -> None:
        self._supervisor = supervisor
        self._sending = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def enter(self, stage: str) -> None:
        """Say what comes next. It is in the socket on return, so a death right after it loses nothing."""
        with self._sending:
            self._supervisor.send(control.STAGE, 0, control.encode({"stage": stage}))

    def stop(self) -> None:
        """Return when another sender can use the supervisor's socket."""
        self._stopped.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stopped.wait(control.HEARTBEAT_SECONDS):
            with self._sending:
                self._supervisor.send(control.HEARTBEAT, 0, control.encode({"busy": None}))

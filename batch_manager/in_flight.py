"""The requests that a batch manager holds, and which frontends wait for each. Those that ask for the very same are one.

A client that sends a request a second time, because the first answer takes long, so costs no second computation. The
same means every byte that could change the rows, and the API key and the class: only the deadlines may differ.
"""

from collections.abc import Collection, Mapping

from batch_manager.held_requests import HeldRequest, Waiter
from batch_manager.scheduling.batches import Request
from wire.connection import Connection

MAX_JOINED_BYTES = 1 << 20  # of what is asked for, 260,000 tokens, as it is kept once more to be found again


class InFlight:
    """All requests that are held."""

    def __init__(self) -> None:
        self._held: dict[int, HeldRequest] = {}
        self._by_work: dict[bytes, HeldRequest] = {}
        self._frontends: dict[Connection, dict[int, int]] = {}  # frame id -> request id

    @property
    def by_id(self) -> Mapping[int, HeldRequest]:
        """Each by its request's id."""
        return self._held

    @property
    def frontends(self) -> Collection[Connection]:
        """Those that are connected."""
        return self._frontends.keys()

    def add_frontend(self, connection: Connection) -> None:
        """A frontend connected."""
        self._frontends[connection] = {}

    def remove_frontend(self, connection: Connection) -> list[Request]:
        """A frontend is gone; the requests that nobody waits for any more."""
        frames = self._frontends.pop(connection)
        left = [self._leave(request_id, connection, frame_id) for frame_id, request_id in frames.items()]
        return [request for request in left if request is not None]

    def add(self, held: HeldRequest) -> None:
        """A request with its first waiter."""
        (waiter,) = held.waiters.values()
        self._wait(waiter, held)
        self._held[held.request.request_id] = held
        if held.work:
            self._by_work[held.work] = held

    def join(self, work: bytes, connection: Connection, frame_id: int, now: float) -> Request | None:
        """One more waits for the request that is for this work; None where none is."""
        held = self._by_work.get(work)
        if held is None:
            return None
        waiter = Waiter(connection, frame_id, now, has_joined=True)
        self._wait(waiter, held)
        held.waiters[waiter.key] = waiter
        return held.request

    def leave(self, connection: Connection, frame_id: int) -> Request | None:
        """A frontend waits no more; the request, if nobody else does. One that is not held is no error."""
        request_id = self._frontends[connection].pop(frame_id, None)
        return None if request_id is None else self._leave(request_id, connection, frame_id)

    def remove(self, request_id: int) -> HeldRequest:
        """A request has ended: nobody waits for it any more."""
        held = self._forget(request_id)
        for waiter in held.waiters.values():
            del self._frontends[waiter.connection][waiter.frame_id]
        return held

    def _wait(self, waiter: Waiter, held: HeldRequest) -> None:
        # comes before all else, so that a frontend that breaks this rule leaves nothing behind
        frames = self._frontends[waiter.connection]
        assert waiter.frame_id not in frames, "a frame id belongs to one request at a time"
        frames[waiter.frame_id] = held.request.request_id

    def _leave(self, request_id: int, connection: Connection, frame_id: int) -> Request | None:
        held = self._held[request_id]
        del held.waiters[connection, frame_id]
        return None if held.waiters else self._forget(request_id).request

    def _forget(self, request_id: int) -> HeldRequest:
        held = self._held.pop(request_id)
        if held.work:
            del self._by_work[held.work]
        return held

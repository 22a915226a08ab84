"""Connections within one process: what a `Link` and `serve` are between two, for parts on the same event loop.

The same frames go over them, so who sends or serves knows nothing of it. A frame that one part sends reaches the other
in the next tick, never within the call of `send`; frames that are sent in one tick arrive in one.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from wire.connection import Connection
from wire.frames import MAX_PAYLOAD, Buffer, PayloadTooLarge

_Frame = tuple[int, int, memoryview]  # kind, id, payload


class LocalService:
    """One who serves, with peers in its own process."""

    def __init__(
        self,
        on_frame: Callable[[Connection, int, int, memoryview], None],
        on_made: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
        *,
        ask: Callable[[Any], Any] | None = None,
    ) -> None:
        self.on_frame, self.on_made, self.on_lost, self.ask = on_frame, on_made, on_lost, ask

    def link(
        self,
        *,
        on_frame: Callable[[int, int, memoryview], None],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> "LocalLink":
        """A peer's side, as `wire.connection.Link` is."""
        return LocalLink(self, on_frame=on_frame, on_up=on_up, on_down=on_down)


class LocalLink:
    """A peer's side of a connection to a `LocalService`. Both end with the process.

    It is lost only where the peer's own callback fails, as a socket's connection is then: it opens again, and the peer
    sends again what it has no answer for, which else would wait for ever.
    """

    def __init__(
        self,
        service: LocalService,
        *,
        on_frame: Callable[[int, int, memoryview], None],
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> None:
        self._service = service
        self.ask = service.ask
        self._on_up = on_up
        self._on_down = on_down
        self._loop = asyncio.get_running_loop()
        self._is_open = self._is_closed = False
        self.accepted = _Accepted(self)  # of the present connection
        self._to_service = _Queue(self._loop, self._serve, lambda: False)
        self.to_peer = _Queue(self._loop, on_frame, self._cut)

    @property
    def is_up(self) -> bool:
        """Whether it is open."""
        return self._is_open

    def open(self) -> None:
        """Open it in the next tick."""
        self._loop.call_soon(self._open)

    def send(self, kind: int, frame_id: int, parts: Sequence[Buffer] = ()) -> None:
        """Queue one frame, of which the parts must not change any more. Raises PayloadTooLarge."""
        if self._is_open:
            self._to_service.put(kind, frame_id, parts)

    def close(self) -> None:
        """Close for good; what was sent still arrives, and nothing comes back."""
        was_open, self._is_open, self._is_closed = self._is_open, False, True
        self.to_peer.close()
        if was_open:
            self._to_service.end(lambda: self._service.on_lost(self.accepted))

    def closed_by_service(self) -> None:
        """The other side closes; `on_down` follows once what it sent has arrived."""
        if self._is_open:
            self._is_open = False
            self._to_service.close()
            self.to_peer.end(self._down)

    def _open(self) -> None:
        if not self._is_closed:
            self._is_open = True
            self._service.on_made(self.accepted)
            self._on_up()

    def _serve(self, kind: int, frame_id: int, payload: memoryview) -> None:
        self._service.on_frame(self.accepted, kind, frame_id, payload)

    def _cut(self) -> bool:
        """Begin anew after the peer's callback has failed; False where it closes anyway."""
        if not self._is_open:
            return False
        self._is_open = False
        lost, self.accepted = self.accepted, _Accepted(self)
        self._to_service.drop()
        self.to_peer.drop()
        self._service.on_lost(lost)
        self._on_down()
        self.open()
        return True

    def _down(self) -> None:
        self._service.on_lost(self.accepted)
        if not self._is_closed:
            self._on_down()


class _Accepted:
    """The service's side."""

    def __init__(self, link: LocalLink) -> None:
        self._link = link

    def send(self, kind: int, frame_id: int, parts: Sequence[Buffer] = ()) -> None:
        if self._link.accepted is self:
            self._link.to_peer.put(kind, frame_id, parts)

    def close(self) -> None:
        if self._link.accepted is self:
            self._link.closed_by_service()


class _Queue:
    """The frames of one direction until the next tick.

    on_error  called where `on_frame` fails; whether the frames behind that one are dropped
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_frame: Callable[[int, int, memoryview], None],
        on_error: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._on_frame = on_frame
        self._on_error = on_error
        self._frames: list[_Frame] = []
        self._on_end: Callable[[], None] | None = None
        self._is_closed = False

    def put(self, kind: int, frame_id: int, parts: Sequence[Buffer]) -> None:
        """Raises PayloadTooLarge."""
        if self._is_closed:
            return
        payload = memoryview(parts[0]).cast("B") if len(parts) == 1 else memoryview(b"".join(parts))
        if payload.nbytes > MAX_PAYLOAD:
            raise PayloadTooLarge(f"a payload of {payload.nbytes} bytes is over the limit of {MAX_PAYLOAD}")
        if not self._frames:
            self._loop.call_soon(self._deliver)
        self._frames.append((kind, frame_id, payload))

    def end(self, on_end: Callable[[], None]) -> None:
        """Take no more; once all has arrived `on_end` is called."""
        self._is_closed, self._on_end = True, on_end
        if not self._frames:
            self._loop.call_soon(self._deliver)

    def close(self) -> None:
        """Drop what has not arrived, and take no more."""
        self._is_closed = True
        self.drop()

    def drop(self) -> None:
        """Drop what has not arrived."""
        self._frames.clear()

    def _deliver(self) -> None:
        frames, self._frames = self._frames, []
        for kind, frame_id, payload in frames:
            try:
                self._on_frame(kind, frame_id, payload)
            except Exception as error:  # those behind it are others' frames
                self._loop.call_exception_handler({"message": "a frame's callback failed", "exception": error})
                if self._on_error():
                    return
        if self._on_end is not None and not self._frames:
            on_end, self._on_end = self._on_end, None
            on_end()

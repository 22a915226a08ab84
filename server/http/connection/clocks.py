"""How long a connection may wait for its client, how much is read after an answer, and how it ends. Parses nothing."""

import asyncio
import contextlib
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.http.connection.answer_clock import AnswerClock
from server.http.connection.exchange import Exchange
from server.http.connection.flow import Flow

_HEAD_SECONDS = 10.0  # for a whole head, from its first byte
_ANSWER_SECONDS = 300.0  # for a client to read an answer that is larger than the buffer; AnswerClock adds to it
_REST_SECONDS = 30.0  # for what still comes of a request after its answer
_MAX_REST_BYTES = 128 * 1024 * 1024  # of that


class Connection(HttpToolsProtocol):
    """The clocks of one connection. Closes it if its client neither sends nor reads."""

    head_seconds = _HEAD_SECONDS
    answer_seconds = _ANSWER_SECONDS
    rest_seconds = _REST_SECONDS
    max_rest_bytes = _MAX_REST_BYTES
    flow: Flow
    cycle: Exchange  # type: ignore[assignment]  # ours in place of uvicorn's
    _is_over = False  # nothing is parsed any more
    _num_dropped = 0  # bytes that came after the answer to their request
    _timer: asyncio.TimerHandle | None = None  # for a head, or for what comes after an answer
    _answer_clock: AnswerClock | None = None  # while the client reads an answer more slowly than the server writes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's is
        super().connection_made(transport)
        self.flow = Flow(transport)
        # uvicorn sets this timer only after an answer, so a connection that never sends anything would stay open
        self._keep_alive(min(self.head_seconds, self.timeout_keep_alive))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._is_over = True
        self._unset_keepalive_if_required()
        self._unset_timer()
        self._stop_answer_clock()

    # waiting for the client to send

    def _keep_alive(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _wait_for_head(self, *, has_begun: bool) -> None:
        """No request is open. Empty lines count as the beginning of a head."""
        if not has_begun:
            self._keep_alive(self.timeout_keep_alive)
        elif self._timer is None:
            self._set_timer(self.head_seconds, self._head_too_slow)

    def _head_too_slow(self) -> None:
        raise NotImplementedError

    def _set_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        self._unset_timer()
        self._timer = self.loop.call_later(seconds, callback)

    def _unset_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # what still comes of a request after its answer

    def _wait_for_rest(self) -> None:
        """The client may send what it has begun, within limits: then it reads its answer and keeps the connection."""
        self._unset_keepalive_if_required()
        self._num_dropped = 0
        self._set_timer(self.rest_seconds, self._close)

    def _drop(self, num_bytes: int) -> None:
        self._num_dropped += num_bytes
        if self._num_dropped > self.max_rest_bytes:
            self._close()

    # waiting for the client to read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit_reading_time()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answer_clock is not None:
            if self.transport.is_closing():
                self._answer_clock.read()
            elif self._is_answering():
                self._answer_clock.stand()
            else:
                self._stop_answer_clock()

    def _is_answering(self) -> bool:
        """Whether an answer has begun of which more has to be written."""
        return self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete

    def _limit_reading_time(self) -> None:
        if self._answer_clock is None:
            self._answer_clock = AnswerClock(self.transport, self.answer_seconds)
        else:
            self._answer_clock.written()

    def _stop_answer_clock(self) -> None:
        if self._answer_clock is not None:
            self._answer_clock.stop()
            self._answer_clock = None

    # the end

    def _close_after_rest(self) -> None:
        """Close, but first take what still comes: who sends into a closed connection may not see the answer."""
        self._is_over = True
        if self.transport.is_closing() or not self.transport.can_write_eof():
            self._close()
            return
        with contextlib.suppress(OSError):  # the client has left
            self.transport.write_eof()
        self.flow.release()
        self._wait_for_rest()

    def _close(self) -> None:
        self._is_over = True
        self.transport.close()
        self._limit_unread()

    def _limit_unread(self) -> None:
        """The connection closes when all is read; that may not take for ever either."""
        if self.transport.get_write_buffer_size():
            self._limit_reading_time()

    def eof_received(self) -> None:
        """The client sends no more, so the connection closes when this returns."""
        self._limit_unread()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing has come for so long."""
        self._close()

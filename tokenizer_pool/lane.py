"""One worker as a frontend sees it: the connection, and what was sent and is not answered yet.

Knows nothing of what waits or of other workers.
"""

import logging
import struct
from collections.abc import Callable
from typing import Any

from tokenizer_pool import messages
from tokenizer_pool.messages import Refusal, TextRefused
from tokenizer_pool.pieces import MAX_PIECE_SECONDS, Job, Part
from tokenizer_pool.tasks import TASKS, AnyAnswer, AnyPiece
from wire.link import Link
from wire.vocabulary import NUM_CLASSES, RequestClass

# A worker gets enough not to idle for want of the next piece. The rest waits in the client, where requests take
# turns, where it can still go to whichever worker is free first, and costs nothing once its client has left.
_MAX_BULK_PARTS = 2
_MAX_INTERACTIVE_SECONDS = MAX_PIECE_SECONDS  # beyond it nothing more is sent

AnyJob = Job[Any]

logger = logging.getLogger("embedline.tokenizer_pool")


class Lane:
    """The way to one worker and back."""

    def __init__(
        self,
        path: str,
        *,
        on_ready: Callable[[], None],
        on_answer: Callable[[AnyJob, Part, AnyAnswer | TextRefused], None],
        on_lost: Callable[[list[tuple[AnyJob, Part]]], None],
    ) -> None:
        """`on_answer` gets what became of a part; `on_lost` what a dead worker owes, in sending order."""
        self.is_live = False  # READY came: a connection alone may wait for a worker that is only being started
        self._seconds = [0.0] * NUM_CLASSES  # of work that is outstanding, estimated
        self._num_parts = [0] * NUM_CLASSES  # that are outstanding
        self._outstanding: dict[int, tuple[AnyJob, Part]] = {}  # by frame id
        self._num_sent = 0
        self._on_ready = on_ready
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._link = Link(path, on_frame=self._received, on_up=lambda: None, on_down=self._lost)

    @property
    def seconds(self) -> float:
        """Work that is outstanding, estimated."""
        return sum(self._seconds)

    @property
    def num_outstanding(self) -> int:
        """Parts that were sent and are not answered yet."""
        return len(self._outstanding)

    def takes(self, request_class: RequestClass) -> bool:
        """Whether more of a class may be sent now."""
        if request_class is RequestClass.BULK:
            return self.is_live and self._num_parts[request_class] < _MAX_BULK_PARTS
        return self.is_live and self._seconds[request_class] < _MAX_INTERACTIVE_SECONDS

    def open(self) -> None:
        """Begin to connect."""
        self._link.open()

    def close(self) -> list[tuple[AnyJob, Part]]:
        """Close for good; what was outstanding is handed back."""
        self._link.close()
        return self._forget()

    def send(self, job: AnyJob, part: Part) -> None:
        """Send a part to the live worker. Raises UnicodeEncodeError where a text holds a lone surrogate."""
        task = TASKS[type(part.piece)]
        payload = task.encode_piece(part.piece)
        self._num_sent += 1
        self._outstanding[self._num_sent] = (job, part)
        self._seconds[part.piece.request_class] += part.seconds
        self._num_parts[part.piece.request_class] += 1
        self._link.send(task.asked, self._num_sent, payload)

    def _received(self, kind: int, frame_id: int, payload: memoryview) -> None:
        if kind == messages.READY:
            self.is_live = True
            self._on_ready()
            return
        job, part = self._outstanding[frame_id]
        answer = _decode(kind, payload, part.piece)
        del self._outstanding[frame_id]
        self._seconds[part.piece.request_class] -= part.seconds
        self._num_parts[part.piece.request_class] -= 1
        self._on_answer(job, part, answer)

    def _lost(self) -> None:
        self._on_lost(self._forget())

    def _forget(self) -> list[tuple[AnyJob, Part]]:
        owed = list(self._outstanding.values())
        self._outstanding.clear()
        self.is_live = False
        self._seconds = [0.0] * NUM_CLASSES
        self._num_parts = [0] * NUM_CLASSES
        return owed


def _decode(kind: int, payload: memoryview, piece: AnyPiece) -> AnyAnswer | TextRefused:
    """An answer, whatever came: a request must not wait for one that nobody can read."""
    task = TASKS[type(piece)]
    try:
        if kind == messages.REFUSED:
            return messages.decode_refused(payload)
        if kind == task.answered:
            answer = task.decode_answer(payload)
            if answer.num_items == piece.num_items:
                return answer
    except (struct.error, ValueError) as error:
        logger.error("an answer of a tokenizer can't be read: %s", error)
    else:
        logger.error("an answer of a tokenizer is not to what was asked")
    return TextRefused(Refusal.FAILED, -1)

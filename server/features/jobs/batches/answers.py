"""The answers to a batch's lines: each line is sent, as a request of this very server as a client does, until there is
an answer that counts. It is a line of output or of errors, as OpenAI has them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from server.features.jobs.batches.lines import Line, LineProblem, LineRequest, custom_id_of, request_of
from server.features.jobs.batches.outputs import RAW, rows_of
from server.features.jobs.batches.state import BatchState
from server.features.jobs.http_client import AnswerTooLarge, ConnectionLost, HttpAnswer
from server.features.jobs.pace import Postponed, SendQueue
from server.features.jobs.types import RetryPolicy

if TYPE_CHECKING:
    import numpy as np

MAX_ANSWER_BYTES = 8 << 20  # of one line
_RETRY = RetryPolicy(max_attempts=3, initial_delay_ms=200, max_delay_ms=5000)
_JSON = "application/json"


Ask = Callable[..., Awaitable[HttpAnswer]]  # as SelfClient.ask


@dataclass(frozen=True, slots=True)
class Answered:
    """A line that is done."""

    line: Line
    content: bytes  # a line of one of the outputs
    has_failed: bool
    has_expired: bool = False


class LineAnswers:
    """The answers to the lines of one batch, while it runs."""

    def __init__(
        self, state: BatchState, ask: Ask, dtype: "np.dtype[Any] | None", *, clock: Callable[[], float]
    ) -> None:
        """dtype  of a Parquet file; None = JSONL"""
        self._batch_id = state.id.removeprefix("batch-")
        self._endpoint = state.endpoint
        self._expires_at = state.expires_at
        self._ask = ask
        self._dtype = dtype
        self._clock = clock
        # The window is no longer than it is now, on the loop's clock: the other one may be set back.
        left = min(state.expires_at - clock(), state.expires_at - state.created_at)
        self._latest = asyncio.get_running_loop().time() + left

    @property
    def seconds_left(self) -> float:
        """The seconds that are left of the window."""
        return min(self._latest - asyncio.get_running_loop().time(), self._expires_at - self._clock())

    async def of(self, line: Line, queue: SendQueue, *, is_repeated: bool) -> Answered | None:
        """Returns None if the line was not asked for before the queue was closed."""
        line_id = f"batch_req_{self._batch_id}_{line.number}"
        try:
            request = request_of(line, self._endpoint)
            if is_repeated:
                raise LineProblem("duplicate_custom_id", "an earlier line has the same custom_id")
            return await self._asked(line, line_id, request, queue)
        except Postponed:
            return None
        except LineProblem as error:
            problem = error
        except TimeoutError:
            problem = LineProblem("batch_expired", "the completion window was over before this line was answered")
        except AnswerTooLarge as error:
            problem = LineProblem("answer_too_large", str(error))
        except ConnectionLost:
            problem = LineProblem("server_error", "the server's process ended at every attempt")
        content = refused(line_id, custom_id_of(line), line.number, problem)
        return Answered(line, content, True, problem.code == "batch_expired")

    async def _asked(self, line: Line, line_id: str, request: LineRequest, queue: SendQueue) -> Answered:
        if (seconds := self.seconds_left) <= 0:
            raise TimeoutError
        async with asyncio.timeout(seconds):
            accept = RAW if self._dtype else _JSON
            answer = await self._ask(
                queue,
                request.url,
                bytes(request.body),
                line_id,
                headers=[("accept", accept)],
                retry=_RETRY,
                max_bytes=MAX_ANSWER_BYTES,
            )
        if self._dtype is None or answer.status != 200:
            return Answered(line, answered(line_id, request.custom_id, answer), answer.status != 200)
        return Answered(line, rows_of(request.custom_id, answer, self._dtype), False)


def answered(line_id: str, custom_id: str, answer: HttpAnswer) -> bytes:
    """A line of output, or of errors where the status is not 200, as OpenAI has it."""
    if answer.headers.get("content-type", "").partition(";")[0] == _JSON:
        body: object = msgspec.Raw(msgspec.json.format(answer.body, indent=-1) if b"\n" in answer.body else answer.body)
    else:
        body = answer.body  # as base64
    response = {
        "status_code": answer.status,
        "request_id": answer.headers.get("x-request-id", line_id),
        "body": body,
    }
    return _line({"id": line_id, "custom_id": custom_id, "response": response, "error": None})


def refused(line_id: str, custom_id: str | None, number: int, problem: LineProblem) -> bytes:
    """A line of errors for what was not computed."""
    error = {"code": problem.code, "message": str(problem), "line": number}
    return _line({"id": line_id, "custom_id": custom_id, "response": None, "error": error})


def _line(content: object) -> bytes:
    return msgspec.json.encode(content) + b"\n"

"""Runs one batch, in turns: a bounded number of its lines is at the server at a time, and their answers are written in
order.

What is answered is committed a piece at a time: outputs first, with fsync, then one document with the place in the
input and the lengths of the outputs. After a crash the outputs are written on from there, so each line of input has
exactly one line of output, although some are computed twice.
"""

import asyncio
import contextlib
import logging
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from server.features.jobs.batches.answers import Answered, Ask, LineAnswers
from server.features.jobs.batches.lines import MAX_LINES, Scan, lines_of, next_lines, scan
from server.features.jobs.batches.outputs import FORMATS, Outputs
from server.features.jobs.batches.state import SERVER_FAULT, BatchError, BatchState, ClaimLost, Holder, KeptBatch, Saved
from server.features.jobs.disk import FULL_ERRORS
from server.features.jobs.files import Files
from server.features.jobs.pace import Postponed, SendQueue
from server.features.jobs.store.store import DocumentStore, StoreError, StoreFull
from server.features.jobs.types import Document

MAX_IN_FLIGHT = 64  # lines of one batch, asked or waiting for their turn
MAX_BYTES_IN_FLIGHT = 32 << 20  # of these lines, and of their answers if they are as large as the latest
_MIN_IN_FLIGHT = 4
_READ_LINES = 16  # at a time
COMMIT_BYTES, COMMIT_SECONDS = 4 << 20, 1.0  # what is answered is committed at the latest then
FULL_PAUSE = 5.0  # until a full disk or store is tried again
_NO_ROOM = "the completion window was over before there was room for the answers that are left"
_MANY_SECONDS = 900.0  # for a whole file: to copy it, to look through it, to put it where --jobs-files says
TURN_SECONDS = 2.0  # of a batch while others wait for its slot
_MAX_LATEST = 1000  # owners of which is known when they had their turns
_Value = TypeVar("_Value")
logger = logging.getLogger("embedline.jobs")


class Slots:
    """Gives turns to batches: `async with slots.turn(queue)` goes around each turn, whose lines are asked for in this
    queue.

    The queue is closed when the turn is over. The owner with the fewest slots goes first, of equals who had its turn
    longest ago; of its batches the one that waits longest.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: dict[SendQueue, float] = {}  # with the times of the loop at which they began
        self._waiting: dict[SendQueue, asyncio.Future[bool]] = {}  # who waits longest first
        self._latest: dict[str, None] = {}  # owners, who had its turn longest ago first
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    @contextlib.asynccontextmanager
    async def turn(self, queue: SendQueue) -> AsyncIterator[None]:
        """A turn, held for as long as the block runs. Raises Postponed after `leave`."""
        future = self._waiting[queue] = self._loop.create_future()
        self._look()
        try:
            if not await future:
                raise Postponed
            yield
        finally:
            self._waiting.pop(queue, None)
            self._running.pop(queue, None)
            self._look()

    def leave(self, queue: SendQueue) -> None:
        """Wait no more for a turn."""
        if (future := self._waiting.pop(queue, None)) is not None and not future.done():
            future.set_result(False)

    def _look(self) -> None:
        """Give what is free, and close queues for those who wait then."""
        while self._waiting and len(self._running) < self._most:
            held = Counter(queue.owner for queue in self._running)
            places = {owner: place for place, owner in enumerate(self._latest, 1)}
            queue = min(self._waiting, key=lambda one: (held[one.owner], places.get(one.owner, 0)))
            self._note(queue.owner)
            self._running[queue] = self._loop.time()
            future = self._waiting.pop(queue)
            if not future.done():  # else it was cancelled in this very tick
                future.set_result(True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        num_wanted = len(self._waiting) - sum(queue.is_closed for queue in self._running)
        while num_wanted > 0 and (queue_over := self._next_over()) is not None:
            due = self._running[queue_over] + TURN_SECONDS
            if due > self._loop.time():
                self._timer = self._loop.call_at(due, self._look)
                return
            queue_over.close()
            num_wanted -= 1

    def _note(self, owner: str) -> None:
        """Note that the owner has a turn."""
        self._latest.pop(owner, None)
        self._latest[owner] = None
        if len(self._latest) > _MAX_LATEST:
            del self._latest[next(iter(self._latest))]

    def _next_over(self) -> SendQueue | None:
        """The queue whose turn ends next: of those that have more slots than an owner that waits, or whose owner waits
        itself."""
        going_on = [queue for queue in self._running if not queue.is_closed]  # who began first is the first
        held = Counter(queue.owner for queue in going_on)
        owners = {queue.owner for queue in self._waiting}
        fewest = min(held[owner] for owner in owners)
        return next((queue for queue in going_on if queue.owner in owners or held[queue.owner] > fewest), None)


class BatchRun:
    """One run of a batch. It can be cancelled at any time; another one goes on from what is committed."""

    def __init__(
        self,
        document: Document,
        files: Files,
        documents: DocumentStore,
        *,
        ask: Ask,
        slots: Slots,
        saved: Saved,
        clock: Callable[[], float],
        holder: Holder | None = None,
    ) -> None:
        self.owner = document.owner
        self.kept = KeptBatch(document, documents, holder=holder, saved=saved, cancelled=self._stop, clock=clock)
        self._files = files
        self._slots = slots
        self._queue = SendQueue(self.owner)  # of this turn
        self._clock = clock
        self._disk_due = math.inf  # when a call of the disk that has not ended should have
        self._stops = False  # a client has cancelled it, or another server runs it
        self._window: deque[asyncio.Task[Answered | None]] = deque()  # lines in flight, in their order
        self._output, self._error = bytearray(), bytearray()  # answered, and not yet committed
        self._needed = 0  # bytes of outputs that found no room in the last turn
        self._usual = MAX_BYTES_IN_FLIGHT // _READ_LINES  # bytes of the largest answers of late; a guess at first
        dtype = FORMATS.get((self.state.metadata or {}).get("output_format", ""))  # None = JSONL
        self._outputs = Outputs(files, self.kept, dtype)
        self._answers = LineAnswers(self.state, ask, dtype, clock=clock)

    @property
    def _is_over(self) -> bool:
        return self._stops or self.state.status in ("cancelling", "finalizing")

    @property
    def state(self) -> BatchState:
        return self.kept.state

    def _stop(self) -> None:
        """Stops the run: no line is begun any more, and those in flight are given up."""
        self._stops = True
        self._slots.leave(self._queue)
        for task in self._window:
            task.cancel()

    async def run(self) -> None:
        """Runs until the batch has ended. Raises StoreError, and ClaimLost if another server goes on with it."""
        try:
            if await self._has_outputs():
                await self._run()
        except FileNotFoundError:
            if not await self._has_lost_its_input():
                raise
        except ClaimLost:
            if await self.kept.is_over():
                await self._outputs.forget()
            raise

    async def _run(self) -> None:
        found: Scan | None = None
        is_answered = False
        path = Path() if self._is_over else await self._input_path()
        while not (is_answered or self._is_over):
            if not await self._has_room():
                return await self._end("expired", errors=(BatchError("no_room", _NO_ROOM),))
            self._queue = SendQueue(self.owner)
            with contextlib.suppress(Postponed):
                async with self._slots.turn(self._queue):
                    if found is None and (found := await self._checked(path)) is None:
                        return
                    is_answered = await self._answer_lines(path, found)
        await self._end()

    async def _input_path(self) -> Path:
        """The input as a file here. Raises FileNotFoundError where it can't be had before the batch is cancelled or its
        window is over."""

        async def copied() -> Path:
            try:
                return await self._files.local(self.state.input_file_id, f"{self.state.output_file_id}.input")
            except (OSError, StoreError) as error:
                if self._is_over or self._answers.seconds_left <= 0:
                    raise FileNotFoundError("its input can't be copied, and nobody waits for it any more") from error
                raise

        return await self._retried("its input can't be copied", copied)

    async def _has_room(self) -> bool:
        """Waits until what found no room in the last turn finds some; not if the window is over before."""
        while self._needed and not self._is_over:
            try:
                await self.kept.reserve(self._needed)
                return True
            except StoreFull as error:
                if self._answers.seconds_left <= 0:
                    return False
                await self._pause("its output can't be kept", error)
        return True

    async def _checked(self, path: Path) -> Scan | None:
        """Scans the input; None if the batch has failed because of that."""
        try:
            with self._disk_asked(_MANY_SECONDS):
                found = await asyncio.to_thread(scan, path, lambda: self._stops)
        except asyncio.CancelledError:
            self._stops = True  # the thread too
            raise
        if found is None:
            await self._fail("too_many_lines", f"the file has more than {MAX_LINES} lines")
            return None
        if found.total == 0 and not self._is_over:
            await self._fail("empty_file", "the file has no lines")
            return None
        await self.kept.change(
            lambda state: (
                state.become("in_progress", self._clock(), total=found.total) if state.status == "validating" else state
            )
        )
        return found

    async def _has_outputs(self) -> bool:
        """Whether the batch can be run."""
        is_there = await self._retried("its output can't be copied", self._outputs.begin)
        if is_there:
            return True
        if not await self._files.exists(self.state.input_file_id):
            raise FileNotFoundError("neither its input nor what had been answered is there")
        if self.state.status == "cancelling":
            await self._fail("output_file_gone", "what had been answered is no longer on the disk")
            return False
        logger.warning("batch %s begins anew: what had been answered is no longer on the disk", self.state.id)
        await self.kept.change(lambda state: state.anew())
        return True

    async def _answer_lines(self, path: Path, found: Scan) -> bool:
        """Whether no line is left; else the turn is over."""
        lines = lines_of(path, offset=self.state.offset, number=self.state.number)
        window, is_at_end, queue = self._window, False, self._queue
        index = self.state.completed + self.state.failed  # of the next line
        answered: list[Answered] = []
        loop = asyncio.get_running_loop()
        committed, held = loop.time(), 0
        try:
            while True:
                while not (self._is_over or queue.is_closed or is_at_end) and held < MAX_BYTES_IN_FLIGHT:
                    room = self._most_in_flight - len(window)
                    if window and room < _READ_LINES:
                        break
                    with self._disk_asked():
                        taken, is_at_end = await asyncio.to_thread(next_lines, lines, max(1, min(room, _READ_LINES)))
                    for line in taken if not self._stops else ():
                        held += len(line.content or b"")
                        asked = self._answers.of(line, queue, is_repeated=found.is_repeated(index))
                        window.append(loop.create_task(asked))
                        index += 1
                if not window:
                    break
                await asyncio.wait([window[0]])
                if window[0].cancelled():  # by `_stop`, which leaves what has been answered
                    break
                if (one := window.popleft().result()) is None:
                    is_at_end = False  # this line and those behind it are for the next turn
                    break
                held -= len(one.line.content or b"")
                self._usual = max(len(one.content), self._usual * 15 // 16)
                answered.append(one)
                (self._error if one.has_failed else self._output).extend(one.content)
                is_due = len(self._output) + len(self._error) > COMMIT_BYTES or loop.time() > committed + COMMIT_SECONDS
                if is_due or not window:
                    await self._commit(answered)
                    committed = loop.time()
        finally:
            for task in window:
                task.cancel()
            if window:
                await asyncio.wait(window)
            window.clear()
        await self._commit(answered)
        return is_at_end

    @property
    def _most_in_flight(self) -> int:
        return max(_MIN_IN_FLIGHT, min(MAX_IN_FLIGHT, MAX_BYTES_IN_FLIGHT // max(1, self._usual)))

    async def _commit(self, answered: list[Answered]) -> None:
        """Commits all of `answered`, which is empty afterwards; as often as it takes where the disk is full. As
        `_reserve`."""
        if not answered:
            return
        num_failed, last = sum(one.has_failed for one in answered), answered[-1].line
        sizes = output_bytes, error_bytes = self.state.output_bytes, self.state.error_bytes
        changes: dict[str, Any] = {
            "offset": last.end,
            "number": last.number,
            "completed": self.state.completed + len(answered) - num_failed,
            "failed": self.state.failed + num_failed,
            "output_bytes": output_bytes + len(self._output),
            "error_bytes": error_bytes + len(self._error),
            "has_expired": self.state.has_expired or any(one.has_expired for one in answered),
        }
        while True:
            try:
                await self._reserve(changes["output_bytes"] + changes["error_bytes"])
                with self._disk_asked():
                    await asyncio.to_thread(self._outputs.write, self._output, self._error, sizes)
                await self.kept.change(lambda state: msgspec.structs.replace(state, **changes))
                break
            except (OSError, StoreError) as error:
                await self._pause("its output can't be kept", error)
        answered.clear()
        self._output.clear()
        self._error.clear()

    async def _reserve(self, num_bytes: int) -> None:
        """Raises Postponed where there is no room: others have this turn meanwhile, and the lines are asked again."""
        try:
            await self.kept.reserve(num_bytes)
        except StoreFull as error:
            self._needed = num_bytes
            self._output.clear()
            self._error.clear()
            raise Postponed from error

    async def give_up(self) -> None:
        """End it as failed by our own fault, with what has been answered if that can be had. Raises what `run` does."""
        fault = BatchError(SERVER_FAULT, "the server failed on this batch, each time that it was tried")
        try:
            if await self._has_outputs():
                await self._end("failed", errors=(fault,))
        except (ClaimLost, StoreError):
            raise
        except Exception:
            logger.exception("batch %s fails without its outputs", self.state.id)
            await self._fail(fault.code, fault.message)

    async def _end(self, status: str = "", **changes: Any) -> None:
        """The outputs become files, cut to what is committed; then the batch has ended. Can be done twice."""
        await self.kept.change(
            lambda state: state.become("finalizing", self._clock()) if state.status == "in_progress" else state
        )
        await self._retried("it can't be ended yet", self._outputs.close)
        await asyncio.to_thread(self._outputs.remove_rest)
        status = status or ("expired" if self.state.has_expired else "completed")
        await self.kept.change(
            lambda state: state.become(
                "cancelled" if state.status == "cancelling" else status, self._clock(), **changes
            )
        )

    async def _pause(self, why: str, error: Exception) -> None:
        """Waits until the step is tried again. Raises ClaimLost, and the error where another server may do better."""
        if self.kept.is_shared and isinstance(error, OSError) and error.errno not in FULL_ERRORS:
            raise error
        logger.error("batch %s waits, as %s: %s", self.state.id, why, error)
        await asyncio.sleep(FULL_PAUSE)
        with contextlib.suppress(StoreError):
            await self.kept.keep()

    async def _retried(self, why: str, do: Callable[[], Awaitable[_Value]]) -> _Value:
        """The result of the call, however often the disk has to be asked. Raises FileNotFoundError, and what `_pause`
        does."""
        while True:
            try:
                with self._disk_asked(_MANY_SECONDS):
                    return await do()
            except FileNotFoundError:
                raise
            except (OSError, StoreError) as error:
                await self._pause(why, error)

    @contextlib.contextmanager
    def _disk_asked(self, seconds: float = 0.0) -> Iterator[None]:
        """Goes around a call that usually ends within so many seconds. Where a mount is lost it may never end."""
        self._disk_due = self._clock() + seconds
        try:
            yield
        finally:
            self._disk_due = math.inf

    @property
    def is_stuck(self) -> bool:
        """Whether the folder has not answered for as long as a claim lasts: then it is not to be renewed."""
        return self._clock() > self._disk_due + self.kept.lease

    async def _has_lost_its_input(self) -> bool:
        """Whether the batch has failed so. A folder that is away may come back within the window."""
        if await self._files.info(self.owner, self.state.input_file_id) is None:
            await self._fail("input_file_gone", "the input file was deleted")
        elif self._answers.seconds_left <= 0:
            await self._fail("input_file_gone", "the completion window was over before the input file could be read")
        return self.state.has_ended

    async def _fail(self, code: str, message: str) -> None:
        gone: dict[str, Any] = {"output_bytes": 0, "error_bytes": 0, "errors": (BatchError(code, message),)}
        await self.kept.change(lambda state: state.become("failed", self._clock(), **gone))
        await asyncio.to_thread(self._outputs.remove)  # no earlier: they may be another claim's

"""The batches of all owners: made, shown, cancelled. Many are begun, of each owner the oldest first, and a few run at a
time, in turns. Those that ended long ago are forgotten; their files stay until their owner removes them.
"""

import asyncio
import contextlib
import importlib.util
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping

from server.features.jobs.batches.answers import Ask
from server.features.jobs.batches.lines import ENDPOINTS
from server.features.jobs.batches.outputs import FORMATS
from server.features.jobs.batches.run import BatchRun, Slots
from server.features.jobs.batches.state import ENDED, KIND, OPEN, BatchState, ClaimLost, Holder, Saved, state_of
from server.features.jobs.files import Files, new_id
from server.features.jobs.store.store import DocumentStore, Signal, StoreError, StoreFull, StoreUnavailable
from server.features.jobs.types import Document
from server.requests.errors import Conflict, InvalidRequest

MAX_RUNNING = 4  # at a time; the others that have begun take turns with them
_MAX_BEGUN, _MAX_BEGUN_OF_ONE = 64, 16  # and an owner's first, whatever others have
_ALONE_SECONDS = 3  # of a new batch, in which another server may begin it that has fewer
MAX_OPEN = 1000  # that run or wait
_MAX_OPEN_OF_ONE = MAX_OPEN // 4  # of an owner; the more there are, the fewer it may have beside them
_NUMBER = re.compile("[1-9][0-9]{0,4}")
_UNITS = {"m": 60, "h": 3600, "d": 86_400}
MAX_WINDOW_SECONDS = 30 * 86_400
_MAX_METADATA, _MAX_NAME, _MAX_VALUE = 16, 64, 512  # pairs, and characters of each, as OpenAI has it
RETRY_PAUSE = 5.0  # after an error of the store, and of our own
_MAX_FAULTS = 3  # of our own, after which a batch has failed
_MAX_TRIES = 100  # to change a batch that its run changes too
LOOK_SECONDS = 1.0  # between two looks for what other servers have changed
_LONGEST_SECONDS = 3600.0  # between two looks for batches to forget; less where the TTL is short
_PAGE = 500  # documents at a time
logger = logging.getLogger("embedline.jobs")


class Batches:
    """`run` runs them until it is cancelled. Everything else raises RequestError, and what the store raises."""

    def __init__(
        self,
        files: Files,
        documents: DocumentStore,
        *,
        ask: Ask,
        saved: Saved = lambda before, after: None,
        clock: Callable[[], float] = time.time,
        holder: Holder | None = None,
    ) -> None:
        """holder  this server among those that share the store; None = there is no other"""
        self._files = files
        self._documents = documents
        self._ask = ask
        self._saved = saved
        self._clock = clock
        self._holder = holder
        self._running: dict[str, BatchRun] = {}
        self._left: list[BatchRun] = []  # cancelled with `run`
        self._slots = Slots(MAX_RUNNING)
        self._faults: dict[str, int] = {}  # how often an open batch has failed by our own fault since the start
        self._resting: set[str] = set()  # not tried again for some seconds
        self._changed = Signal()
        self._may_begin = True
        self._creating = asyncio.Lock()  # so that a batch does not begin with a file that is being deleted

    async def create(
        self, owner: str, *, endpoint: str, input_file_id: str, completion_window: str, metadata: Mapping[str, str]
    ) -> BatchState:
        """The new batch. Raises InvalidRequest, and StoreFull where as many as may be run and wait."""
        if endpoint not in ENDPOINTS:
            raise InvalidRequest(f"endpoint must be one of {', '.join(ENDPOINTS)}", param="endpoint")
        _check_metadata(metadata)
        if (output_format := metadata.get("output_format", "jsonl")) != "jsonl":
            _check_format(output_format, endpoint)
        seconds = _seconds(completion_window)
        now = int(self._clock())
        state = BatchState(
            id=new_id("batch"),
            endpoint=endpoint,
            input_file_id=input_file_id,
            completion_window=completion_window,
            metadata=dict(metadata) or None,
            created_at=now,
            expires_at=now + seconds,
            output_file_id=new_id("file"),
            error_file_id=new_id("file"),
        )
        async with self._creating:
            if await self._files.info(owner, input_file_id) is None:
                raise InvalidRequest("input_file_id is not the id of a file", param="input_file_id")
            owners = [document.owner for document in await open_batches(self._documents)]
            if owners.count(owner) >= min(_MAX_OPEN_OF_ONE, MAX_OPEN - len(owners)):
                raise StoreFull(f"{owners.count(owner)} batches of this key have not ended, as many as may be")
            await self._documents.put(state.document(owner))
        self._saved(state, state)
        self._changed.set()
        return state

    async def delete_file(self, owner: str, file_id: str) -> bool:
        """Whether there was one. Raises Conflict where a batch reads or writes it."""
        async with self._creating:
            for document in await open_batches(self._documents):
                state = state_of(document)
                if document.owner == owner and file_id in (
                    state.input_file_id,
                    state.output_file_id,
                    state.error_file_id,
                ):
                    message = f"{state.id} needs this file until it has ended; it can be cancelled"
                    raise Conflict(message, param="file_id")
            hidden = await self._files.hide(owner, file_id)
        if hidden is not None:
            await self._files.remove(hidden)
        return hidden is not None

    async def delete(self, owner: str, batch_id: str) -> bool:
        """Whether there was one; its files stay. Raises Conflict for one that has not ended."""
        document = await self._documents.get(owner, KIND, batch_id)
        if document is not None and not state_of(document).has_ended:
            raise Conflict("this batch has not ended; it can be cancelled first", param="batch_id")
        return document is not None and await self._documents.delete(owner, KIND, batch_id)

    async def get(self, owner: str, batch_id: str) -> BatchState | None:
        document = await self._documents.get(owner, KIND, batch_id)
        return state_of(document) if document is not None else None

    async def newest(self, owner: str, *, after: str | None, limit: int) -> list[BatchState]:
        """An owner's batches behind `after`, the newest first. Raises InvalidRequest where `after` is no batch."""
        if after is not None and await self._documents.get(owner, KIND, after) is None:
            raise InvalidRequest("after is not the id of a batch", param="after")
        return [state_of(one) for one in await self._documents.newest(owner, KIND, after=after, limit=limit)]

    async def cancel(self, owner: str, batch_id: str) -> BatchState | None:
        """Returns None where there is no such batch; one that has ended stays as it is."""
        for _ in range(_MAX_TRIES):
            document = await self._documents.get(owner, KIND, batch_id)
            if document is None:
                return None
            state = state_of(document)
            if state.status not in ("validating", "in_progress"):
                break
            cancelled = state.become("cancelling", self._clock())
            if await self._documents.replace(cancelled.document(owner, document.version)):
                self._saved(state, cancelled)
                state = cancelled
                break
        else:
            raise StoreUnavailable("the batch changes too often")
        self._changed.set()
        return state

    def begin_more(self, may: bool) -> None:
        """Whether batches are begun: while this server loads or stops, others that share them may be ready."""
        self._may_begin = may
        self._changed.set()

    async def run(self) -> None:
        """Runs batches until cancelled; what runs then goes on after the next start."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                try:
                    await self._start(group)
                except StoreError as error:
                    logger.error("batches wait: the store can't be read: %s", error)
                    await asyncio.sleep(RETRY_PAUSE)
                    continue
                await self._changed.wait_for(LOOK_SECONDS if self._holder else None)

    async def forget_old(self, ttl: float) -> None:
        """Forgets batches that ended so many seconds ago. Until cancelled."""
        while True:
            try:
                if count := await self.forget(ttl):
                    logger.info("%d batch(es) are forgotten, as they ended %.0f s ago or more", count, ttl)
            except StoreError as error:
                logger.error("batches that ended long ago can't be forgotten: %s", error)
            await asyncio.sleep(max(1.0, min(_LONGEST_SECONDS, ttl / 10)))

    async def forget(self, ttl: float) -> int:
        """Removes the batches that are due, and returns how many there were."""
        count, kept = 0, None
        while True:
            page = await self._documents.in_state(KIND, ENDED, after=kept, limit=_PAGE)
            for document in page:
                state = state_of(document)
                if state.times.get(f"{state.status}_at", state.expires_at) > self._clock() - ttl:
                    kept = document.document_id
                elif await self._documents.delete(document.owner, KIND, document.document_id):
                    count += 1
            if len(page) < _PAGE:
                return count

    async def release(self) -> None:
        """Give up all claims once `run` was cancelled: other servers may go on at once with what ran here."""
        for run in self._left:
            with contextlib.suppress(StoreError, ClaimLost):  # then they wait until the claim is over
                await run.kept.release()

    async def _start(self, group: asyncio.TaskGroup) -> None:
        waiting: list[Document] = []
        for document in await open_batches(self._documents):
            if (run := self._running.get(document.document_id)) is not None:
                if run.is_stuck:
                    continue  # another server may have the folder
                with contextlib.suppress(ClaimLost):  # its run finds out too
                    await run.kept.look(document)
            elif document.document_id not in self._resting and self._may_run(document):
                waiting.append(document)
        begun = [one for one in waiting if state_of(one).status == "cancelling"]  # each has only to be closed
        waiting = [one for one in waiting if one not in begun] if self._may_begin else []
        counts = Counter(run.owner for run in self._running.values())
        while possible := [one for one in waiting if self._has_place(one, counts)]:
            begun.append(min(possible, key=lambda one: counts[one.owner]))  # of equals the oldest
            counts[begun[-1].owner] += 1
            waiting.remove(begun[-1])
        for document in begun:
            if self._holder is not None:
                claimed = await self._holder.claim(document, self._documents, self._clock())
                if claimed is None:
                    continue
                document = claimed
            run = self._running[document.document_id] = BatchRun(
                document,
                self._files,
                self._documents,
                ask=self._ask,
                slots=self._slots,
                saved=self._saved,
                clock=self._clock,
                holder=self._holder,
            )
            group.create_task(self._run_one(document.document_id, run))

    def _has_place(self, document: Document, counts: Counter[str]) -> bool:
        """Whether it may begin beside those that have, so many of each owner."""
        if counts.total() < MAX_RUNNING:
            return True
        if self._holder is not None and self._clock() < document.created_at + _ALONE_SECONDS:
            return False
        its = counts[document.owner]
        return not its or (its < _MAX_BEGUN_OF_ONE and counts.total() < _MAX_BEGUN)

    def _may_run(self, document: Document) -> bool:
        return self._holder is None or self._holder.may_claim(state_of(document), self._clock())

    async def _run_one(self, batch_id: str, run: BatchRun) -> None:
        logger.info("batch %s %s", batch_id, "begins" if run.state.status == "validating" else "goes on")
        try:
            await self._try(batch_id, run)
        except asyncio.CancelledError:
            self._left.append(run)
            raise
        finally:
            del self._running[batch_id]
            self._changed.set()

    async def _try(self, batch_id: str, run: BatchRun) -> None:
        """Run it; where that fails, others go first for a while."""
        try:
            if self._faults.get(batch_id, 0) < _MAX_FAULTS:
                await run.run()
            else:
                await run.give_up()
            self._faults.pop(batch_id, None)
            logger.info("batch %s has ended: %s", batch_id, run.state.status)
        except ClaimLost:
            self._faults.pop(batch_id, None)
            logger.warning("batch %s goes on with another claim", batch_id)
        except (OSError, StoreError) as error:  # OSError: of a disk or a mount that is away for a while
            logger.error("batch %s waits: %s", batch_id, error)
            with contextlib.suppress(StoreError, ClaimLost):
                await run.kept.release()
            self._rest(batch_id)
        except Exception:
            is_late = self._clock() >= run.state.expires_at
            self._faults[batch_id] = _MAX_FAULTS if is_late else self._faults.get(batch_id, 0) + 1
            logger.exception("batch %s stopped because of a bug", batch_id)
            self._rest(batch_id)

    def _rest(self, batch_id: str) -> None:
        """It holds no place until it is tried again."""
        self._resting.add(batch_id)
        asyncio.get_running_loop().call_later(RETRY_PAUSE, self._rested, batch_id)

    def _rested(self, batch_id: str) -> None:
        self._resting.discard(batch_id)
        self._changed.set()


async def open_batches(documents: DocumentStore) -> list[Document]:
    """The open batches of all owners, the oldest first."""
    return await documents.in_state(KIND, OPEN, limit=MAX_OPEN)


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if len(metadata) > _MAX_METADATA:
        raise InvalidRequest(f"metadata may have {_MAX_METADATA} pairs", param="metadata")
    for number, (name, value) in enumerate(metadata.items()):
        if len(name) > _MAX_NAME or len(value) > _MAX_VALUE:
            bounds = f"{_MAX_NAME} characters, or its value over {_MAX_VALUE}"
            raise InvalidRequest(f"the key of metadata's pair {number} has over {bounds}", param="metadata")


def _check_format(output_format: str, endpoint: str) -> None:
    if output_format not in FORMATS:
        raise InvalidRequest(f"metadata.output_format must be one of jsonl, {', '.join(FORMATS)}", param="metadata")
    if endpoint != "/v1/embeddings":
        raise InvalidRequest(f"metadata.output_format {output_format} is for /v1/embeddings alone", param="metadata")
    if importlib.util.find_spec("pyarrow") is None:
        message = "needs pyarrow, which this server does not have: pip install 'embedline[backfill]'"
        raise InvalidRequest(f"metadata.output_format {output_format} {message}", param="metadata")


def _seconds(window: str) -> int:
    number, unit = window[:-1], window[-1:]
    seconds = int(number) * _UNITS[unit] if _NUMBER.fullmatch(number) and unit in _UNITS else 0
    if not 0 < seconds <= MAX_WINDOW_SECONDS:
        raise InvalidRequest(
            "completion_window must be a number and m, h or d, at most 30 days", param="completion_window"
        )
    return seconds

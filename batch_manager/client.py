"""A frontend's side of the batch managers: hands a request to one, and keeps it until its answer is in.

A large request goes in parts to several, and their answers are joined. If a batch manager dies, what it held is
submitted again, to another or to the restarted one. Knows nothing of texts or HTTP, and of theirs only messages.
"""

import asyncio
import itertools
import logging
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from batch_manager import messages
from batch_manager.messages import RequestRefusal, RequestRefused, RequestResults, Submission, join_rows
from wire.connection import Connect
from wire.frames import MAX_PAYLOAD, Buffer
from wire.page import Page
from wire.parts import cut
from wire.records import light_dataclass

_ID_BYTES = 4
_MAX_TRIES = 3  # submissions of one request: whatever takes batch managers down takes no more of them than that
_MAY_BE_SICK = (RequestRefusal.ENGINE_FAILED, RequestRefusal.NON_FINITE)  # an input is to blame, or the engine is
_LEAST_PART_BYTES = 16_384  # of token ids, 4,096 tokens: what is less is not split, as a batch takes it whole

logger = logging.getLogger("embedline.frontend")


class _ManagerLost(Exception):
    """The batch manager died while it held the request."""


@light_dataclass(frozen=True, slots=True)
class _Submitted:
    """A request whose answer is not in yet."""

    payload: list[Buffer]
    future: asyncio.Future[RequestResults]


class ManagerLink:
    """One batch manager and the requests it holds for this frontend."""

    def __init__(self, connect: Connect) -> None:
        self._loop = asyncio.get_running_loop()
        self._submitted: dict[int, _Submitted] = {}
        self._is_closed = False
        self._link = connect(on_frame=self._received, on_up=self._up, on_down=lambda: self._end_all(_ManagerLost))

    @property
    def is_up(self) -> bool:
        """Whether a connection is open; its peer may still have to accept it."""
        return self._link.is_up

    def open(self) -> None:
        """Begin to connect."""
        self._link.open()

    def close(self) -> None:
        """Close for good; what is held is refused, and so is what comes."""
        self._is_closed = True
        self._link.close()
        self._end_all(lambda: RequestRefused(RequestRefusal.STOPPING))

    async def ask(self, request_id: int, payload: list[Buffer]) -> RequestResults:
        """Submit once and wait. Raises RequestRefused and _ManagerLost."""
        if self._is_closed:
            raise RequestRefused(RequestRefusal.STOPPING)
        submitted = self._submitted[request_id] = _Submitted(payload, self._loop.create_future())
        self._link.send(messages.SUBMIT, request_id, payload)
        try:
            return await submitted.future
        except asyncio.CancelledError:
            if self._submitted.pop(request_id, None) is not None:
                self._link.send(messages.CANCEL, request_id)
            raise

    def refute(self, model: int) -> None:
        """Tell it that another one computed a request that had failed on its only engine of this model."""
        self._link.send(messages.REFUTED, 0, messages.encode_refuted(model))

    def _up(self) -> None:
        """Send what was submitted while the link was down."""
        for request_id, submitted in self._submitted.items():
            self._link.send(messages.SUBMIT, request_id, submitted.payload)

    def _end_all(self, error: Callable[[], Exception]) -> None:
        for submitted in self._submitted.values():
            if not submitted.future.done():
                submitted.future.set_exception(error())
        self._submitted.clear()

    def _received(self, kind: int, request_id: int, payload: memoryview) -> None:
        submitted = self._submitted.get(request_id)
        if submitted is None:  # cancelled meanwhile
            return
        try:
            outcome = _decode(kind, payload)
        except (ValueError, OverflowError, struct.error) as error:
            logger.error("a batch manager gave a malformed answer: %s", error)
            outcome = RequestRefused(RequestRefusal.ENGINE_FAILED)
        del self._submitted[request_id]
        if submitted.future.done():  # cancelled in this very tick
            return
        if isinstance(outcome, RequestResults):
            submitted.future.set_result(outcome)
        else:
            submitted.future.set_exception(outcome)


class BatchManagers:
    """All batch managers of this server."""

    def __init__(self, managers: Sequence[tuple[Connect, Sequence[int]]], page: Page) -> None:
        """How each is connected to, and the models (by index) it has engines for."""
        self._page = page
        self._managers = [ManagerLink(connect) for connect, _ in managers]
        self._num_requests = 0
        num_models = page.num_models
        self._serving = [  # per model, the indices of the managers that have engines for it
            [index for index, (_, models) in enumerate(managers) if model in models] for model in range(num_models)
        ]

    def open(self) -> None:
        """Begin to connect."""
        for manager in self._managers:
            manager.open()

    def close(self) -> None:
        """Close the links; what is still held is refused."""
        for manager in self._managers:
            manager.close()

    def submit(self, submission: Submission) -> Awaitable[RequestResults]:
        """Rows for the sequences, in order. Raises RequestRefused. Cancelling drops the request everywhere.

        A large request goes in parts to several batch managers, so that all finish at about the same time.
        """
        parts = self._parts(submission)
        return self._submit(submission) if len(parts) < 2 else self._submit_parts(parts)

    async def _submit_parts(self, parts: Sequence[tuple[int, int, Submission]]) -> RequestResults:
        asked = [asyncio.ensure_future(self._submit_part(*part)) for part in parts]
        try:
            answers = await asyncio.gather(*asked)
        except RequestRefused:
            for one in asked:
                one.cancel()
            raise
        return await asyncio.to_thread(join, answers)  # many rows to copy

    def _parts(self, submission: Submission) -> list[tuple[int, int, Submission]]:
        """The index of each part's first sequence, its batch manager, and the part; none where it is not split."""
        model = submission.model
        if len(self._serving[model]) < 2:
            return []
        num_bytes = memoryview(submission.token_ids).nbytes
        most = num_bytes // _LEAST_PART_BYTES
        if most < 2:
            return []
        page = self._page
        ready = [one for one in self._serving[model] if self._managers[one].is_up and page.engines_ready[one, model]]
        chosen = sorted(ready, key=lambda index: self._wait(index, model))[:most]
        if len(chosen) < 2:
            return []
        waits = [self._wait(index, model) for index in chosen]
        rates = [self._rate(index, model) for index in chosen]
        parts = split(submission, even_shares(waits, rates, num_bytes // 4))
        firsts = [0, *itertools.accumulate(len(part.seqlens) for part in parts)]
        return [part for part in zip(firsts, chosen, parts, strict=False) if part[2].seqlens]

    async def _submit_part(self, first: int, index: int, part: Submission) -> RequestResults:
        try:
            return await self._submit(part, at=index)
        except RequestRefused as refused:
            if refused.index >= 0:
                refused.index += first
            raise

    async def _submit(self, submission: Submission, *, at: int = -1) -> RequestResults:
        """Submit a request whole: at first to the batch manager `at`, where one is given.

        A request is submitted again, at most `_MAX_TRIES` times in all, where its batch manager died, and where that
        has no engine while another has one; and once to another one, where it failed on the only engine of its manager.
        """
        self._num_requests += 1
        request_id = self._num_requests
        payload = messages.encode_submission(submission)
        if sum(map(len, payload)) > MAX_PAYLOAD:
            raise RequestRefused(RequestRefusal.TOO_LONG)
        failed_at = -1  # index of the manager on whose only engine the request failed
        for _ in range(_MAX_TRIES):
            index = at if at >= 0 else self._choose(submission.model, but=failed_at)
            at = -1
            try:
                answer = await self._managers[index].ask(request_id, payload)
            except _ManagerLost:
                # not this request's fault as far as anybody knows: a long one is there at many deaths
                reason = RequestRefused(RequestRefusal.NO_ENGINE)
            except RequestRefused as refused:
                if (
                    refused.reason in _MAY_BE_SICK
                    and failed_at < 0
                    and self._may_pass_elsewhere(submission.model, index)
                ):
                    failed_at, reason = index, refused
                    continue
                if refused.reason is not RequestRefusal.NO_ENGINE or not self._has_engine(submission.model):
                    raise
                reason = refused
            else:
                if failed_at >= 0 and index != failed_at and not answer.has_joined:  # the other one says so
                    self._managers[failed_at].refute(submission.model)
                return answer
        raise reason

    def _may_pass_elsewhere(self, model: int, index: int) -> bool:
        """Whether another manager has an engine, and this one has no second engine that has tried already."""
        ready = self._page.engines_ready[:, model]
        return bool(ready[index] < 2 and any(ready[other] for other in self._serving[model] if other != index))

    def _has_engine(self, model: int) -> bool:
        """Whether the manager that would be asked now has an engine."""
        return bool(self._page.engines_ready[self._choose(model), model])

    def _choose(self, model: int, *, but: int = -1) -> int:
        """The manager of this model with the shortest wait, by preference one that is up and has an engine, and not
        this one."""
        serving = self._serving[model]
        if len(serving) == 1:
            return serving[0]

        def cost(index: int) -> tuple[bool, bool, bool, float]:
            is_down = not self._managers[index].is_up
            return index == but, is_down, not self._page.engines_ready[index, model], self._wait(index, model)

        return min(serving, key=cost)

    def _wait(self, index: int, model: int) -> float:
        """Seconds of work that a manager has."""
        return int(self._page.queued_tokens[index, model].sum()) / self._rate(index, model)

    def _rate(self, index: int, model: int) -> float:
        """Tokens a second; one of which nothing is known yet counts as fast as the fastest."""
        rates = self._page.tokens_per_second[:, model]
        return float(rates[index]) or float(rates[self._serving[model]].max()) or 1.0


def _decode(kind: int, payload: memoryview) -> RequestResults | RequestRefused:
    """Raises ValueError, OverflowError or struct.error where the frame is malformed."""
    if kind == messages.ANSWER:
        return messages.decode_answer(payload)
    if kind == messages.REFUSED:
        return messages.decode_refused(payload)
    raise ValueError(f"a frame of kind {kind:#06x}")


def even_shares(waits: Sequence[float], rates: Sequence[float], num_tokens: int) -> list[float]:
    """Tokens for each of several batch managers, so that all of them finish at the same time.

    `waits` are the seconds that each is busy already, `rates` the tokens a second of each. One that is busy for longer
    than the others need for all gets 0.
    """
    order = sorted(range(len(waits)), key=waits.__getitem__)
    total, rate, end = float(num_tokens), 0.0, 0.0
    for position, index in enumerate(order):
        total += rates[index] * waits[index]
        rate += rates[index]
        end = total / rate  # seconds from now, if only those up to here take a part
        if position + 1 == len(order) or end <= waits[order[position + 1]]:
            break
    return [max(0.0, rates[index] * (end - waits[index])) for index in range(len(waits))]


def split(submission: Submission, shares: Sequence[float]) -> list[Submission]:
    """A part of whole sequences for each share of the tokens, in order; one without sequences where nothing fits."""
    ends = np.cumsum(submission.seqlens)
    cuts = np.searchsorted(ends, np.cumsum(shares[:-1]) + 1).tolist()  # at the first one that goes over the share
    return [_part(submission, ends, *bounds) for bounds in itertools.pairwise([0, *cuts, len(ends)])]


def _part(submission: Submission, ends: NDArray[np.int64], first: int, last: int) -> Submission:
    start, end = (int(ends[index - 1]) if index else 0 for index in (first, last))
    return replace(
        submission,
        seqlens=submission.seqlens[first:last],
        token_ids=memoryview(submission.token_ids)[_ID_BYTES * start : _ID_BYTES * end],
        parts=cut(submission.parts, (first, start), (last, end)),
    )


def join(answers: Sequence[RequestResults]) -> RequestResults:
    """The answers to all parts, in order, as the answer to the whole."""
    kinds = answers[0].results
    return RequestResults(
        results={kind: join_rows([answer.results[kind] for answer in answers]) for kind in kinds},
        queue_seconds=max(answer.queue_seconds for answer in answers),
        compute_seconds=sum(answer.compute_seconds for answer in answers),
        has_joined=any(answer.has_joined for answer in answers),
    )

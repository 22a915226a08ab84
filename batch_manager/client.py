"""A frontend's side of the batch managers: hands a request over, keeps it until its answer is in.

If a batch manager dies, what it held is submitted again to the restarted one. Knows nothing of texts or HTTP.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from batch_manager import messages
from batch_manager.messages import Answer, Refusal, RequestRefused, Submission
from wire.frames import Buffer
from wire.link import Link
from wire.page import Page

_MAX_DEATHS = 3  # of batch managers, after which a request that each of them held is refused


@dataclass(frozen=True, slots=True)
class ManagerAddress:
    """Where a batch manager listens and which models (by index) it has engines for."""

    path: str
    models: tuple[int, ...]


@dataclass(slots=True)
class _Held:
    """A request whose answer is not in yet."""

    payload: list[Buffer]
    future: asyncio.Future[Answer]
    num_deaths: int = 0  # of batch managers that held it


class _Manager:
    """One batch manager and the requests it holds for this frontend."""

    def __init__(self, path: str) -> None:
        self.held: dict[int, _Held] = {}
        self.link = Link(path, on_frame=self._received, on_up=self._submit_again, on_down=self._died)

    def _submit_again(self) -> None:
        for request_id, held in self.held.items():
            self.link.send(messages.SUBMIT, request_id, held.payload)

    def _died(self) -> None:
        """Give up what may be the cause: it was there each time."""
        for request_id, held in list(self.held.items()):
            held.num_deaths += 1
            if held.num_deaths >= _MAX_DEATHS and not held.future.done():
                held.future.set_exception(RequestRefused(Refusal.ENGINE_FAILED))
                del self.held[request_id]

    def _received(self, kind: int, request_id: int, payload: memoryview) -> None:
        held = self.held.pop(request_id, None)
        if held is None or held.future.done():  # cancelled meanwhile
            return
        if kind == messages.ANSWER:
            held.future.set_result(messages.decode_answer(payload))
        elif kind == messages.REFUSED:
            held.future.set_exception(messages.decode_refused(payload))


class BatchManagers:
    """All batch managers of this server."""

    def __init__(self, addresses: Sequence[ManagerAddress], page: Page) -> None:
        self._loop = asyncio.get_running_loop()
        self._page = page
        self._managers = [_Manager(address.path) for address in addresses]
        self._num_requests = 0
        num_models = page.num_models
        self._serving = [  # per model, the indices of the managers that have engines for it
            [index for index, address in enumerate(addresses) if model in address.models] for model in range(num_models)
        ]

    def open(self) -> None:
        """Begin to connect."""
        for manager in self._managers:
            manager.link.open()

    def close(self) -> None:
        """Close the links; what is still held is refused."""
        for manager in self._managers:
            manager.link.close()
            for held in manager.held.values():
                if not held.future.done():
                    held.future.set_exception(RequestRefused(Refusal.STOPPING))

    async def submit(self, submission: Submission) -> Answer:
        """Rows for the sequences, in order. Raises RequestRefused. Cancelling drops the request everywhere."""
        manager = self._managers[self._least_loaded(submission.model)]
        self._num_requests += 1
        request_id = self._num_requests
        payload = messages.encode_submission(submission)
        future: asyncio.Future[Answer] = self._loop.create_future()
        manager.held[request_id] = _Held(payload, future)
        manager.link.send(messages.SUBMIT, request_id, payload)
        try:
            return await future
        except asyncio.CancelledError:
            if manager.held.pop(request_id, None) is not None:
                manager.link.send(messages.CANCEL, request_id)
            raise

    def _least_loaded(self, model: int) -> int:
        serving = self._serving[model]
        if len(serving) == 1:
            return serving[0]
        return min(serving, key=lambda index: int(self._page.queued_tokens[index, model].sum()))

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


@dataclass(frozen=True, slots=True)
class ManagerAddress:
    """Where a batch manager listens and which models (by index) it has engines for."""

    path: str
    models: tuple[int, ...]


class _Manager:
    """One batch manager and the requests it holds for this frontend."""

    def __init__(self, path: str) -> None:
        self.held: dict[int, tuple[list[Buffer], asyncio.Future[Answer]]] = {}
        self.link = Link(path, on_frame=self._received, on_up=self._submit_again, on_down=lambda: None)

    def _submit_again(self) -> None:
        for request_id, (payload, _) in self.held.items():
            self.link.send(messages.SUBMIT, request_id, payload)

    def _received(self, kind: int, request_id: int, payload: memoryview) -> None:
        entry = self.held.pop(request_id, None)
        if entry is None or entry[1].done():  # cancelled meanwhile
            return
        if kind == messages.ANSWER:
            entry[1].set_result(messages.decode_answer(payload))
        elif kind == messages.REFUSED:
            entry[1].set_exception(messages.decode_refused(payload))


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
            for _, future in manager.held.values():
                if not future.done():
                    future.set_exception(RequestRefused(Refusal.STOPPING))

    async def submit(self, submission: Submission) -> Answer:
        """Rows for the sequences, in order. Raises RequestRefused. Cancelling drops the request everywhere."""
        manager = self._managers[self._least_loaded(submission.model)]
        self._num_requests += 1
        request_id = self._num_requests
        payload = messages.encode_submission(submission)
        future: asyncio.Future[Answer] = self._loop.create_future()
        manager.held[request_id] = (payload, future)
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

"""The tokenizer worker and the batch manager in a frontend's process, or the way to those that have processes.

Both stand on the frontend's event loop, and are reached over `wire.local`. What the frontend and its clients know of
them is the same as of other processes. They are imported only where they are.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from server.frontend.start import FrontendStart
from wire.child import Child
from wire.connection import Connect, Link
from wire.control import Json
from wire.local import LocalService
from wire.page import Page

if TYPE_CHECKING:
    from batch_manager.worker import Manager
    from tokenizer_pool.worker import Worker

# The modules by which the event loop enters them. After an error in there they may be broken, and the process ends.
MODULES = frozenset({"batch_manager.worker", "batch_manager.engine_link", "tokenizer_pool.worker"})

_DRAIN_SECONDS = 1.0  # for the batch manager, when no request is open any more

logger = logging.getLogger("embedline.server")


class Inside:
    """What of the two is in this process, and how all tokenizer workers and batch managers are connected to.

    workers   of each tokenizer worker
    managers  of each batch manager, and the models (by index) it has engines for
    """

    def __init__(self, child: Child, start: FrontendStart, page: Page) -> None:
        """Raises StartError where a model folder has no usable tokenizer."""
        self._worker: Worker | None = None
        self._manager: Manager | None = None
        self.workers: Sequence[Connect] = [partial(Link, path) for path in start.tokenizer_paths]
        self.managers: Sequence[tuple[Connect, Sequence[int]]] = [
            (partial(Link, one.path), one.models) for one in start.managers
        ]
        if start.tokenizer is not None:
            from tokenizer_pool.worker import load_worker

            worker = self._worker = load_worker(start.tokenizer, child.metrics, page=page, frontend=child.index)
            self.workers = [LocalService(worker.received, worker.accepted, worker.lost, ask=worker.ask).link]
        if start.manager is not None:
            from batch_manager.worker import begin

            manager = self._manager = begin(child, start.manager, page)
            service = LocalService(manager.frontend_frame, manager.frontend_made, manager.frontend_lost)
            self.managers = [(service.link, range(page.num_models))]

    def holds(self) -> Json:
        """What waits in the tokenizer worker, for an operator who asks; the batch manager's is among the levels."""
        return {"tokenizer": self._worker.holds()} if self._worker else {}

    async def drain(self) -> None:
        """Finish or refuse what the batch manager holds, in a bounded time."""
        if self._manager is not None:
            try:
                async with asyncio.timeout(_DRAIN_SECONDS):
                    await self._manager.drain()
            except TimeoutError:
                logger.error("an engine still computes what nobody waits for")

    async def close(self) -> None:
        """Let go of the engines, once the frontend has closed its connections."""
        if self._manager is not None:
            await self._manager.close()

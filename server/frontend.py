"""A frontend process: HTTP in, answers out. Wires the pipeline to the hot path and lives until told to stop."""

import asyncio
import gc
import socket

from batch_manager.client import BatchManagers, ManagerAddress
from server.admission import Admission, WaitBudgets
from server.app import make_app
from server.asgi import BodyReader
from server.frontend_state import FrontendState
from server.hot_path import HotPath
from server.http_server import HttpServer
from server.pipeline import Pipeline
from tokenizer_pool.client import TokenizerPool
from wire.child import Child, run
from wire.control import Request
from wire.page import Page


async def serve(child: Child) -> None:
    """The role of a frontend."""
    spec = child.spec
    page = Page.attach(spec["page_fd"])
    state = FrontendState(page, child.metrics)
    state.update(spec["state"])
    child.on_state = state.update
    tokenizers = TokenizerPool(spec["tokenizer_paths"], max_seqlens=spec["max_seqlens"])
    managers = BatchManagers([ManagerAddress(m["path"], tuple(m["models"])) for m in spec["managers"]], page)
    admission = Admission(
        page,
        frontend=child.index,
        budgets=WaitBudgets(**spec["wait_budgets"]),
        max_requests=spec["max_concurrent_requests"],
    )

    async def metrics() -> str:
        return str((await child.request(Request.METRICS))["text"])

    app = HotPath(
        state,
        admission,
        pipeline=Pipeline(admission, tokenizers, managers),
        bodies=BodyReader(max_bytes=spec["payload_limit"], max_total_bytes=spec["open_payload_limit"]),
        fallback=make_app(state, metrics),
        max_items=spec["max_client_batch_size"],
    )
    server = HttpServer(app, socket.socket(fileno=spec["listener_fd"]))
    tokenizers.open()
    managers.open()
    await server.start()
    gc.freeze()  # what is loaded by now stays; the collector need not walk it again
    child.ready()
    await child.stopping.wait()
    state.draining = True
    await server.stop(spec["shutdown_timeout"])
    tokenizers.close()
    managers.close()
    await asyncio.sleep(0)  # the last answers are flushed at the end of a tick


if __name__ == "__main__":
    run(serve, exits_on_error=False)

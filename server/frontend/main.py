"""A frontend process: HTTP in, answers out. Wires the pipeline to the hot path and lives until told to stop."""

import asyncio
import gc
import socket

from batch_manager.client import BatchManagers
from server.frontend.observer import Observer
from server.frontend.request_log import Logged, RequestLog
from server.frontend.start import FrontendStart
from server.frontend.state import FrontendState
from server.http.app import HotPath
from server.http.auth import Keys
from server.http.body import BodyReader
from server.http.cors import with_cors
from server.http.get_routes import make_app
from server.http.http_server import HttpServer
from server.http.route import Resources
from server.requests.admission import Admission
from server.requests.pipeline import Pipeline
from tokenizer_pool.client import TokenizerPool
from wire.child import Child, run
from wire.control import Request
from wire.page import Page


async def serve(child: Child, start: FrontendStart) -> None:
    """The role of a frontend."""
    page = Page.attach(start.page_fd)
    state = FrontendState(page, strict_model_name=start.strict_model_name)
    child.on_state = state.update
    tokenizers = TokenizerPool(start.tokenizer_paths, max_seqlens=start.max_seqlens)
    managers = BatchManagers(start.managers, page)
    admission = Admission(
        page, frontend=child.index, budgets=start.wait_budgets, max_requests=start.max_concurrent_requests
    )

    async def metrics() -> str:
        return str((await child.request(Request.METRICS))["text"])

    resources = Resources(
        state=state,
        admission=admission,
        pipeline=Pipeline(admission, tokenizers, managers),
        bodies=BodyReader(max_bytes=start.payload_limit, max_total_bytes=start.open_payload_limit),
        max_items=start.max_client_batch_size,
    )
    log = RequestLog(Logged(start.request_log), child.metrics)
    app = HotPath(
        resources,
        keys=Keys(start.keys, metrics_need_a_key=start.metrics_auth),
        observer=Observer(child.metrics, log=log.write),
        fallback=make_app(state, metrics),
    )
    server = HttpServer(
        with_cors(app, start.cors_allow_origin), socket.socket(fileno=start.listener_fd), on_refused=app.refused
    )
    child.metrics.watch("embedline_open_requests", child.title, level=lambda: admission.num_open)
    child.metrics.watch("embedline_open_connections", child.title, level=lambda: server.num_connections)
    tokenizers.open()
    managers.open()
    state.update(await child.request(Request.STATE))  # as late as may be: what comes after this is told to us
    await server.start()
    gc.freeze()  # what is loaded by now stays; the collector need not walk it again
    child.ready()
    await child.stopping.wait()
    state.draining = True
    await server.stop(start.shutdown_timeout)
    tokenizers.close()
    managers.close()
    await log.close()
    await asyncio.sleep(0)  # the last answers are flushed at the end of a tick


if __name__ == "__main__":
    run(serve, FrontendStart, exits_on_error=False)

"""A frontend process: builds the pipeline and the ASGI app, and serves until the supervisor stops it."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import FastAPI

from batch_manager.client import BatchManagers
from server.features.jobs.http.async_predict import AsyncPredict
from server.features.jobs.rpc import JobsClient
from server.features.pipelines.client import PipelinesClient
from server.features.pipelines.routes import RunPipeline
from server.frontend.reporting import Logged, RequestLog, RequestMetrics
from server.frontend.start import FrontendStart
from server.http.acceptor import Share
from server.http.app import App
from server.http.auth import Keys
from server.http.body import BodyReader
from server.http.get_routes import make_app
from server.http.hosts import Hosts, with_cors
from server.http.http_server import HttpServer
from server.http.tls import Certificate
from server.metrics.registry import MetricsSource
from server.requests.admission import Admission
from server.requests.inputs import GivenIds, TokenIds
from server.requests.models import ServerState
from server.requests.pipeline import Pipeline
from server.requests.trace import Trace
from server.settings.flag import SettingsError
from tokenizer_pool import cl100k
from tokenizer_pool import worker as tokenizer_worker
from tokenizer_pool.client import TokenizerPool
from wire.child import Child, StartError, run
from wire.control import Json, Request
from wire.metrics import Recorder
from wire.page import Page

if TYPE_CHECKING:
    from server.features.grpc.server import GrpcServer

_SUPERVISOR_SECONDS = 5.0  # for its answer; Prometheus waits for ten

logger = logging.getLogger("embedline.server")


@dataclass(frozen=True, slots=True)
class _Shared:
    """What HTTP and gRPC have in common."""

    state: ServerState
    admission: Admission
    pipeline: Pipeline
    bodies: BodyReader
    keys: Keys
    finished: "_Finished"
    jobs: JobsClient | None
    pipelines: PipelinesClient | None


async def serve(child: Child, start: FrontendStart) -> None:
    """The role of a frontend."""
    page = Page.attach(start.page_fd)
    tokenizers = TokenizerPool(start.tokenizer_paths, max_seqlens=start.max_seqlens)
    managers = BatchManagers(start.managers, page)
    log = RequestLog(Logged(start.request_log), child.metrics, sample_rate=start.request_log_sample_rate)
    shared = _share(child, start, page, tokenizers, managers, log)
    app = _make_app(start, shared, _make_fallback(child, start, shared))
    server = _make_server(start, app, Share(page, child.index))
    steps = HttpServer(app, [socket.socket(fileno=start.pipelines.listener_fd)]) if start.pipelines else None
    grpc = _make_grpc(start, shared, start.grpc_address) if start.grpc_address is not None else None
    child.metrics.watch("embedline_open_requests", child.title, level=lambda: shared.admission.requests.num_open)
    child.metrics.watch("embedline_open_connections", child.title, level=lambda: server.num_connections)
    child.holds = tokenizers.holds
    own = await tokenizer_worker.listen(start.tokenizer, child.metrics) if start.tokenizer else None
    others: list[TokenizerPool | BatchManagers | JobsClient | PipelinesClient] = [tokenizers, managers]
    others += [each for each in (shared.jobs, shared.pipelines) if each is not None]
    for other in others:
        other.open()
    may_accept = await _follow_state(child, shared.state, server, grpc)
    if steps is not None:
        await steps.start()
    accepting = asyncio.create_task(_accept(child, server, grpc, may_accept))
    child.ready()
    await child.stopping.wait()
    shared.state.draining = True
    accepting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await accepting
    await _stop(server, grpc, steps, seconds=start.shutdown_timeout)
    for other in others:
        other.close()
    if own is not None:
        own[1].close()
        await own[0].finish()
    await log.close()
    await asyncio.sleep(0)  # the last answers are flushed at the end of a tick


async def _stop(server: HttpServer, grpc: "GrpcServer | None", steps: HttpServer | None, *, seconds: float) -> None:
    """Open requests have so many seconds to finish, all together."""
    deadline = time.monotonic() + seconds
    await asyncio.gather(*(each.stop(seconds) for each in (server, grpc) if each is not None))
    if steps is not None:  # only now: the runs that were open needed it
        await steps.stop(max(0.0, deadline - time.monotonic()))


def _share(
    child: Child,
    start: FrontendStart,
    page: Page,
    tokenizers: TokenizerPool,
    managers: BatchManagers,
    log: RequestLog,
) -> _Shared:
    rule = TokenIds(start.token_ids)
    vocabulary = _vocabulary(start) if rule is TokenIds.CL100K else None
    admission = Admission(
        page,
        frontend=child.index,
        budgets=start.wait_budgets,
        max_requests=start.max_concurrent_requests,
        max_held_bytes=start.max_held_bytes,
        keys=start.keys,
    )
    return _Shared(
        state=ServerState(page, strict_model_name=start.strict_model_name, decodes_ids=vocabulary is not None),
        admission=admission,
        pipeline=Pipeline(admission, tokenizers, managers, given_ids=GivenIds(rule, tokenizers, vocabulary)),
        bodies=BodyReader(
            max_bytes=start.payload_limit,
            max_total_bytes=start.open_payload_limit,
            are_keys_several=admission.are_keys_several,
        ),
        keys=Keys(
            start.keys,
            metrics_need_a_key=start.metrics_auth,
            file=start.key_file,
            renewed=admission.renew_keys,
            jobs_secret=start.jobs.secret if start.jobs else None,
            pipelines_secret=start.pipelines.secret if start.pipelines else None,
        ),
        finished=_Finished(child.metrics, log),
        jobs=JobsClient(start.jobs.path) if start.jobs else None,
        pipelines=PipelinesClient(start.pipelines.path) if start.pipelines else None,
    )


def _make_fallback(child: Child, start: FrontendStart, shared: _Shared) -> FastAPI:
    return make_app(
        shared.state,
        _metrics(child),
        jobs=shared.jobs,
        pipelines=shared.pipelines,
        needs_key=bool(start.keys),
        metrics_need_a_key=start.metrics_auth,
    )


class _Finished:
    """What becomes of a request's trace: metrics and a line of the log."""

    def __init__(self, recorder: Recorder, log: RequestLog) -> None:
        self._metrics = RequestMetrics(recorder)
        self._log = log

    def __call__(self, trace: Trace) -> None:
        self._metrics.record(trace)
        self._log.write(trace)


def _metrics(child: Child) -> MetricsSource:
    """The supervisor's page. Raises TimeoutError."""

    async def metrics() -> str:
        async with asyncio.timeout(_SUPERVISOR_SECONDS):
            return str((await child.request(Request.METRICS))["text"])

    return metrics


def _make_app(start: FrontendStart, shared: _Shared, fallback: FastAPI) -> App:
    return App(
        state=shared.state,
        admission=shared.admission,
        pipeline=shared.pipeline,
        bodies=shared.bodies,
        max_items=start.max_client_batch_size,
        has_documents_in_objects=start.rerank_document_format == "object",
        compresses=start.compress_answers,
        hosts=Hosts(start.hosts, origins=start.cors_allow_origin),
        keys=shared.keys,
        finished=shared.finished,
        fallback=fallback,
        passed_on=(AsyncPredict(shared.jobs), RunPipeline(shared.pipelines, shared.bodies)),
        url_prefix=start.url_prefix,
    )


def _make_server(start: FrontendStart, app: App, share: Share) -> HttpServer:
    return HttpServer(
        with_cors(app, start.cors_allow_origin),
        [socket.socket(fileno=fd) for fd in start.listener_fds],
        on_refused=app.refused,
        certificate=_certificate(start),
        max_connections=start.max_connections,
        idle_seconds=start.keep_alive_timeout,
        share=share,
    )


def _make_grpc(start: FrontendStart, shared: _Shared, address: str) -> "GrpcServer":
    """Raises StartError. Its packages are those of an extra, and loading them takes a while."""
    from server.features.grpc.calls import Calls
    from server.features.grpc.server import GrpcServer, server_credentials

    certificate = None
    if start.ssl_certfile is not None:
        try:
            certificate = server_credentials(start.ssl_certfile, start.ssl_keyfile, copies=start.ssl_copies)
        except SettingsError as error:  # as in _certificate
            raise StartError(str(error)) from None
    calls = Calls(
        state=shared.state,
        admission=shared.admission,
        pipeline=shared.pipeline,
        bodies=shared.bodies,
        max_items=start.max_client_batch_size,
        keys=shared.keys,
        finished=shared.finished,
    )
    return GrpcServer(
        address,
        calls,
        state=shared.state,
        keys=shared.keys,
        max_message_bytes=start.payload_limit,
        max_rpcs=start.max_concurrent_requests,
        max_connections=start.max_connections,
        credentials=certificate,
    )


async def _follow_state(
    child: Child, state: ServerState, server: HttpServer, grpc: "GrpcServer | None"
) -> asyncio.Event:
    """Apply what the supervisor says, now and from now on; the event is set once connections may be accepted."""
    may_accept = asyncio.Event()

    def changed(newest: Json) -> None:
        state.update(newest)
        if newest["accepting"]:
            may_accept.set()
        if newest["draining"]:
            server.drain()
        if grpc is not None:
            grpc.state_changed()

    child.on_state = changed
    changed(await child.request(Request.STATE))
    return may_accept


def _vocabulary(start: FrontendStart) -> Mapping[int, bytes]:
    """Raises StartError."""
    try:
        return cl100k.vocabulary_for(start.tiktoken_vocabulary)
    except cl100k.VocabularyError as error:
        raise StartError(f"--tiktoken-vocabulary: {error}") from None


def _certificate(start: FrontendStart) -> Certificate | None:
    """Raises StartError."""
    if start.ssl_certfile is None:
        return None
    try:
        return Certificate(start.ssl_certfile, start.ssl_keyfile, copies=start.ssl_copies)
    except SettingsError as error:  # the supervisor has read it; so it has changed since
        raise StartError(str(error)) from None


async def _accept(child: Child, server: HttpServer, grpc: "GrpcServer | None", may_accept: asyncio.Event) -> None:
    """Accept connections once it is allowed: while another server is taken over, not before the models are loaded."""
    await may_accept.wait()
    await server.start()
    if grpc is None:
        return
    try:
        await grpc.start()
    except OSError as error:
        logger.critical("%s", error)
        child.stopping.set()  # this process ends in order, and is started again


if __name__ == "__main__":
    run(serve, FrontendStart, exits_on_error=False)

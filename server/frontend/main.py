"""A frontend process: builds the pipeline and the ASGI app, and serves until the supervisor stops it."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module

from batch_manager.client import BatchManagers
from server.dialects.table import PLAIN_ROUTES, ROUTES
from server.feature import loaded
from server.features.table import FEATURES
from server.frontend.inside import MODULES, Inside
from server.frontend.parts import Off, Part, Shared
from server.frontend.request_log import Logged, RequestLog
from server.frontend.start import FrontendStart
from server.http.access import Hosts, Keys, with_cors
from server.http.app import App
from server.http.body import RequestBodies
from server.http.routes import own_routes
from server.http.server import ConnectionCount, HttpServer
from server.http.tls import Certificate
from server.requests.admission import Admission, WaitBudgets
from server.requests.given_ids import GivenIds, TokenIdsRule
from server.requests.models import ModelsState
from server.requests.pipeline import Pipeline
from server.settings.flag import SettingsError
from tokenizer_pool import cl100k
from tokenizer_pool.client import TokenizerPool
from wire.child import Child, StartError, run
from wire.control import ControlRequest, Json
from wire.page import Page

_SUPERVISOR_SECONDS = 5.0  # for its answer; Prometheus waits for ten

logger = logging.getLogger("embedline.server")


async def serve(child: Child, start: FrontendStart) -> None:
    """The role of a frontend."""
    page = Page.attach(start.page_fd)
    inside = Inside(child, start, page)
    tokenizers = TokenizerPool(inside.workers, max_seqlens=start.max_seqlens)
    managers = BatchManagers(inside.managers, page)
    log = RequestLog(Logged(start.log.request_log), child.metrics, sample_rate=start.log.request_log_sample_rate)
    shared = _make_shared(child, start, page, tokenizers, managers, log)
    parts = _parts(start, shared)
    app = _make_app(child, start, shared, parts)
    server = _make_server(start, app, parts, ConnectionCount(page, child.index))
    child.metrics.watch("embedline_open_requests", child.title, level=lambda: shared.admission.requests.num_open)
    child.metrics.watch("embedline_open_connections", child.title, level=lambda: server.num_connections)
    child.holds = lambda: {**tokenizers.holds(), **inside.holds()}
    tokenizers.open()
    managers.open()
    may_accept = await _follow_state(child, shared.state, server, parts)
    for part in parts:
        await part.open(app)
    accepting = asyncio.create_task(_accept(child, server, parts, may_accept))
    child.ready()
    await child.stopping.wait()
    shared.state.draining = True
    accepting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await accepting
    await _stop(server, parts, seconds=start.shutdown_timeout)
    tokenizers.close()
    await inside.drain()
    managers.close()
    await inside.close()
    for part in parts:
        part.close()
    await log.close()
    await asyncio.sleep(0)  # the last answers are flushed at the end of a tick


async def _stop(server: HttpServer, parts: Sequence[Part], *, seconds: float) -> None:
    """Open requests have so many seconds to finish, all together."""
    deadline = time.monotonic() + seconds
    await asyncio.gather(server.stop(seconds), *(part.stop(seconds) for part in parts))
    for part in parts:
        await part.stop_last(max(0.0, deadline - time.monotonic()))


def _make_shared(
    child: Child,
    start: FrontendStart,
    page: Page,
    tokenizers: TokenizerPool,
    managers: BatchManagers,
    log: RequestLog,
) -> Shared:
    limits = start.limits
    rule = TokenIdsRule(start.http.token_ids)
    vocabulary = _vocabulary(start) if rule is TokenIdsRule.CL100K else None
    admission = Admission(
        page,
        frontend=child.index,
        budgets=WaitBudgets(limits.interactive_max_wait, limits.bulk_max_wait),
        max_requests=limits.max_concurrent_requests,
        max_held_bytes=start.max_held_bytes,
        keys=start.access.keys,
    )
    return Shared(
        start=start,
        state=ModelsState(page, strict_model_name=start.http.strict_model_name, decodes_ids=vocabulary is not None),
        admission=admission,
        pipeline=Pipeline(admission, tokenizers, managers, given_ids=GivenIds(rule, vocabulary)),
        bodies=RequestBodies(
            max_bytes=limits.payload_limit,
            max_total_bytes=start.open_payload_limit,
            are_keys_several=admission.are_keys_several,
        ),
        keys=Keys(
            start.access.keys,
            metrics_auth=start.http.metrics_auth,
            file=start.access.key_file,
            renewed=admission.renew_keys,
        ),
        finished=log.report,
        max_items=limits.max_client_batch_size,
    )


def _parts(start: FrontendStart, shared: Shared) -> list[Part]:
    """One of each feature that a frontend takes part in. Raises StartError."""
    on = {each.name: each for each in start.features}
    return [
        loaded(feature.frontend)(on[feature.name], shared) if feature.name in on else Off(feature)
        for feature in FEATURES
        if feature.frontend
    ]


async def _metrics(child: Child) -> str:
    """The supervisor's page. Raises TimeoutError."""
    async with asyncio.timeout(_SUPERVISOR_SECONDS):
        return str((await child.request(ControlRequest.METRICS))["text"])


def _make_app(child: Child, start: FrontendStart, shared: Shared, parts: Sequence[Part]) -> App:
    own = own_routes(partial(_metrics, child), needs_key=bool(start.access.keys), metrics_auth=start.http.metrics_auth)
    return App(
        shared,
        [*ROUTES, *PLAIN_ROUTES, *own, *(route for part in parts for route in part.routes)],
        has_documents_in_objects=start.http.rerank_document_format == "object",
        compress_answers=start.http.compress_answers,
        hosts=Hosts(start.access.hosts, origins=start.http.cors_allow_origin),
        url_prefix=start.http.url_prefix,
    )


def _make_server(start: FrontendStart, app: App, parts: Sequence[Part], count: ConnectionCount) -> HttpServer:
    return HttpServer(
        with_cors(app, start.http.cors_allow_origin),
        [*(socket.socket(fileno=fd) for fd in start.listener_fds), *(one for part in parts for one in part.listeners)],
        on_refused=app.refused,
        certificate=_certificate(start),
        max_connections=start.max_connections,
        keep_alive_timeout=start.http.keep_alive_timeout,
        count=count,
    )


async def _follow_state(child: Child, state: ModelsState, server: HttpServer, parts: Sequence[Part]) -> asyncio.Event:
    """Apply what the supervisor says, now and from now on; the event is set once connections may be accepted."""
    may_accept = asyncio.Event()

    def changed(newest: Json) -> None:
        state.update(newest)
        if newest["accepting"]:
            may_accept.set()
        if newest["draining"]:
            server.drain()
        for part in parts:
            part.state_changed()

    child.on_state = changed
    changed(await child.request(ControlRequest.STATE))
    return may_accept


def _vocabulary(start: FrontendStart) -> Mapping[int, bytes]:
    """Raises StartError."""
    try:
        return cl100k.vocabulary_for(start.http.tiktoken_vocabulary)
    except cl100k.VocabularyError as error:
        raise StartError(f"--tiktoken-vocabulary: {error}") from None


def _certificate(start: FrontendStart) -> Certificate | None:
    """Raises StartError."""
    if start.http.ssl_certfile is None:
        return None
    try:
        return Certificate(start.http.ssl_certfile, start.http.ssl_keyfile, copies=start.access.ssl_copies)
    except SettingsError as error:  # the supervisor has read it; so it has changed since
        raise StartError(str(error)) from None


async def _accept(child: Child, server: HttpServer, parts: Sequence[Part], may_accept: asyncio.Event) -> None:
    """Accept connections once it is allowed: while another server is taken over, not before the models are loaded."""
    await may_accept.wait()
    import_module("server.http.line_streams")  # now: an upgrade may replace the file while this process serves
    await server.start()
    try:
        for part in parts:
            await part.start()
    except OSError as error:
        logger.critical("%s", error)
        child.stopping.set()  # this process ends in order, and is started again


if __name__ == "__main__":
    run(serve, FrontendStart, exits_on_errors_in=MODULES)

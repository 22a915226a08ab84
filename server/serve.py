"""From settings to a running house: find the model, choose the engine, bind the ports, hand over to the supervisor."""

import asyncio
import logging
import socket

from server.bind import bind, bind_monitor
from server.house import House
from server.http_server import HttpServer
from server.model_plan import ModelPlan, plan_model
from server.monitor import make_monitor
from server.run_folder import RunFolder
from server.settings import Settings
from server.supervisor import Supervisor
from server.watchdog import Watchdog
from wire.control import Json
from wire.process import begin

logger = logging.getLogger("embedline.server")


def serve(settings: Settings) -> int:
    """Run until stopped; the exit code. Raises SettingsError and ModelError before anything is started."""
    begin("supervisor", settings.log_level)
    models = [plan_model(settings)]
    http = bind(settings.hostname, settings.port, "--port")
    monitor = bind_monitor(settings.hostname, settings.prometheus_port)
    folder = RunFolder()
    try:
        return asyncio.run(_supervise(settings, models, folder, http=http, monitor=monitor))
    finally:
        folder.remove()


async def _supervise(
    settings: Settings,
    models: list[ModelPlan],
    folder: RunFolder,
    *,
    http: socket.socket,
    monitor: socket.socket | None,
) -> int:
    house = House(settings, models, folder, http)
    supervisor = Supervisor(
        house,
        models,
        limits=_limits(settings),
        log_level=settings.log_level,
        watchdog=Watchdog(
            house.page, heartbeat_timeout=settings.heartbeat_timeout, batch_timeout=settings.batch_timeout
        ),
    )
    monitoring = None
    if monitor is not None:
        monitoring = HttpServer(make_monitor(supervisor.metrics.text, supervisor.why_not_ready), monitor)
        await monitoring.start()
    host, port = http.getsockname()[:2]
    for model in models:
        logger.info("serving %s with the %s engine on http://%s:%d", model.name, model.engine, host, port)
    try:
        return await supervisor.run(settings.shutdown_timeout)
    finally:
        if monitoring is not None:
            await monitoring.stop(0)


def _limits(settings: Settings) -> Json:
    """The part of the settings that /info shows, under TEI's names."""
    return {
        "max_concurrent_requests": settings.max_concurrent_requests,
        "max_batch_tokens": settings.max_batch_tokens,
        "max_batch_requests": settings.max_batch_requests,
        "max_client_batch_size": settings.max_client_batch_size,
        "payload_limit": settings.payload_limit,
        "auto_truncate": settings.auto_truncate,
        "tokenization_workers": settings.tokenization_workers,
        "frontends": settings.frontends,
    }

"""From settings to a running house: find the model, choose the engine, bind the ports, hand over to the supervisor."""

import asyncio
import logging
import socket
from pathlib import Path

from engine import model_folder, registry
from engine.model_source import resolve
from engine.types import ModelError
from server.house import House, ModelPlan
from server.http_server import HttpServer
from server.monitor import make_monitor
from server.run_folder import RunFolder
from server.settings import Settings, SettingsError
from server.supervisor import Supervisor
from server.watchdog import Watchdog
from tokenizer_pool.messages import Truncation
from wire.control import Json
from wire.process import begin

_DEFAULT_PROMETHEUS_PORT = 9000

logger = logging.getLogger("embedline.server")


def serve(settings: Settings) -> int:
    """Run until stopped; the exit code. Raises SettingsError and ModelError before anything is started."""
    begin("supervisor", settings.log_level)
    model = plan_model(settings)
    http = bind(settings.hostname, settings.port, "--port")
    monitor = bind_monitor(settings)
    folder = RunFolder()
    try:
        return asyncio.run(_supervise(settings, model, folder, http=http, monitor=monitor))
    finally:
        folder.remove()


def plan_model(settings: Settings) -> ModelPlan:
    """Read the model's folder: everything about it that can be wrong is found here, before a process is started."""
    engine, reason = registry.choose(settings.engine)
    cache = settings.huggingface_hub_cache
    resolved = resolve(
        settings.model_id, settings.revision, cache_dir=Path(cache) if cache else None, token=settings.hf_token
    )
    folder = model_folder.read(resolved.path, pooling=settings.pooling, needs_weights=engine != "fake")
    return ModelPlan(
        name=settings.served_model_name or settings.model_id,
        engine=engine,
        reason=reason,
        folder=folder,
        source=resolved.source,
        revision=resolved.revision,
        default_prompt=_default_prompt(settings, folder.prompts, folder.default_prompt_name),
    )


def _default_prompt(settings: Settings, prompts: dict[str, str], model_default: str | None) -> str:
    """The flags outrank the model's own default."""
    if settings.default_prompt is not None:
        return settings.default_prompt
    name = settings.default_prompt_name or model_default
    if name is None:
        return ""
    if name not in prompts:
        known = ", ".join(sorted(prompts)) or "none"
        raise ModelError(f"--default-prompt-name is not one of the model's prompts ({known})")
    return prompts[name]


def bind(hostname: str, port: int, flag: str) -> socket.socket:
    """A bound and listening TCP socket. Raises SettingsError that names the flag."""
    try:
        family, _, _, _, address = socket.getaddrinfo(hostname, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise SettingsError(f"--hostname is no address of this machine: {error.strerror}") from None
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        raise SettingsError(f"{flag} {port}: can't listen there: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def bind_monitor(settings: Settings) -> socket.socket | None:
    """The supervisor's own port. The default one may be taken; one that was asked for may not."""
    if settings.prometheus_port == 0:
        return None
    if settings.prometheus_port is not None:
        return bind(settings.hostname, settings.prometheus_port, "--prometheus-port")
    try:
        return bind(settings.hostname, _DEFAULT_PROMETHEUS_PORT, "--prometheus-port")
    except SettingsError:
        logger.warning("port %d is taken; there is no second /metrics", _DEFAULT_PROMETHEUS_PORT)
        return None


async def _supervise(
    settings: Settings, model: ModelPlan, folder: RunFolder, *, http: socket.socket, monitor: socket.socket | None
) -> int:
    house = House(settings, model, folder, http)
    supervisor = Supervisor(
        house,
        model,
        limits=_limits(settings),
        log_level=settings.log_level,
        watchdog=Watchdog(
            house.page, heartbeat_timeout=settings.heartbeat_timeout, batch_timeout=settings.batch_timeout
        ),
    )
    if monitor is not None:
        page = make_monitor(supervisor.metrics.text, supervisor.why_not_ready)
        await HttpServer(page, monitor).start()
    host, port = http.getsockname()[:2]
    logger.info("serving %s with the %s engine on http://%s:%d", model.name, model.engine, host, port)
    return await supervisor.run(settings.shutdown_timeout)


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
        "truncation": Truncation.RIGHT if settings.auto_truncate else Truncation.NONE,
    }

"""Turns settings into a running server: find the models, choose engines, bind the ports, hand over to the
supervisor. server.commands.serve has begun the process before."""

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from embedline.progress import Progress
from engine.machine import cores
from server.frontend.start import Access
from server.http.access import HEALTH_PATHS, Hosts, Keys, answered_hosts, is_loopback
from server.http.server import HttpServer
from server.http.tls import copied
from server.settings.api_keys import api_keys, key_file
from server.settings.flag import PREFIX, SettingsError
from server.settings.settings import Settings
from server.supervisor import resources
from server.supervisor.listeners import host_and_port
from server.supervisor.model_files import cache_folder, remove_leftovers
from server.supervisor.model_plan import ModelPlan, check_engine_python, plan_models
from server.supervisor.monitor import make_monitor
from server.supervisor.placement import Placement, place
from server.supervisor.ports import Ports, Succession, open_ports
from server.supervisor.resources import check_memory, cpu_threads, memory_shares
from server.supervisor.socket_folder import SocketFolder
from server.supervisor.spawn import EarlyEngine
from server.supervisor.stderr_relay import StderrRelay
from server.supervisor.supervisor import Supervisor
from server.supervisor.topology import Topology
from tokenizer_pool import cl100k
from wire.control import Json

_AUTO_BATCH_TOKENS = 16_384  # what /info shows where engines choose: TEI's default, as its field must be a number
_MONITOR_IDLE_SECONDS = 30  # connections to the supervisor's own port; Prometheus asks more often

logger = logging.getLogger("embedline.server")


@dataclass(frozen=True, slots=True)
class Prepared:
    """Settings that were checked, and what they need: models found, ports bound."""

    models: list[ModelPlan]
    access: Access
    cache_dir: str | None  # for what engines compile
    ports: Ports

    @property
    def devices(self) -> list[str]:
        """The devices of all engines."""
        return [name for model in self.models for name in model.devices.names]


def prepare(settings: Settings, *, progress: Progress | None = None) -> Prepared:
    """Find the models, convert pickles, with `progress`, and bind the ports. Raises SettingsError and ModelError."""
    check_engine_python(settings.engine_python)
    _check_vertex_routes(settings)
    file = key_file(settings.api_key, settings.api_key_file)
    keys = api_keys(settings.api_key, settings.api_key_file)
    if settings.token_ids == "cl100k":
        try:
            cl100k.vocabulary_for(settings.tiktoken_vocabulary)
        except cl100k.VocabularyError as error:
            raise SettingsError(f"--tiktoken-vocabulary: {error}") from None
    ssl_copies = copied(settings.ssl_certfile, settings.ssl_keyfile) if settings.ssl_certfile is not None else []
    models = plan_models(settings, progress=progress)
    placement = place(settings, models)  # raises what is wrong before a port is bound, as do the next four
    resources.check_open_files(num_processes=_num_processes(placement, models))
    cpu_threads(settings.cpu_threads, models)
    check_memory(models)
    memory_shares(models)
    compiles = any(model.engine != "fake" for model in models)
    cache_dir = cache_folder(settings.compiled_cache, os.environ) if compiles else None
    ports = open_ports(settings, [name for model in models for name in model.devices.names])
    hosts = answered_hosts(
        settings.allowed_hosts, hostname=settings.hostname, address=ports.http.address[0], has_keys=bool(keys)
    )
    access = Access(keys=keys, key_file=file, hosts=hosts, ssl_copies=ssl_copies)
    return Prepared(models, access, cache_dir, ports)


def _num_processes(placement: Placement, models: Sequence[ModelPlan]) -> int:
    num_engines = sum(len(model.devices.names) for model in models)
    return placement.num_frontends + placement.num_tokenizers + placement.num_managers + num_engines


def _check_vertex_routes(settings: Settings) -> None:
    """Raises SettingsError for a path that Vertex AI would ask in vain."""
    if not os.environ.keys() & {"AIP_HEALTH_ROUTE", "AIP_PREDICT_ROUTE"}:
        return
    from server.dialects.table import ROUTES  # these take a third of a second
    from server.http.paths import Paths

    known = {"AIP_HEALTH_ROUTE": {"/", *HEALTH_PATHS}, "AIP_PREDICT_ROUTE": {route.path for route in ROUTES}}
    for variable, paths in known.items():
        path = os.environ.get(variable)
        if path and Paths(paths, url_prefix=settings.url_prefix).find(path).path not in paths:
            raise SettingsError(f"the variable {variable} names a path that this server does not have")


def run(
    settings: Settings, prepared: Prepared, relay: StderrRelay, *, early: EarlyEngine, signals: Sequence[int]
) -> int:
    """Run until stopped; the exit code. `signals` came before the supervisor takes them itself."""
    _log_models_and_keys(prepared, scheme="https" if settings.ssl_certfile else "http")
    folder = SocketFolder()
    try:
        return asyncio.run(_supervise(settings, prepared, folder, relay, early=early, signals=signals))
    finally:
        folder.remove()
        remove_leftovers(prepared.cache_dir)


def _log_models_and_keys(prepared: Prepared, *, scheme: str) -> None:
    found = cores.find()
    logger.info("sized for %d core(s): %s", found.usable, found)
    host, port = prepared.ports.http.address
    beside = " and on the socket of --uds" if prepared.ports.uds is not None else ""
    for name, kept in prepared.ports.features.items():
        beside += f", over {name} on {host_and_port(kept)}"
    for model in prepared.models:
        logger.info("serving %s on %s://%s:%d%s", model.name, scheme, host, port, beside)
        logger.info("%s gets the device %s (%s)", model.name, ", ".join(model.devices.names), model.devices.reason)
        if model.loras:
            logger.info("%s has the adapters %s", model.name, ", ".join(lora.name for lora in model.loras))
        for lora in model.loras:
            if lora.note:
                logger.warning("%s: --lora %s: %s", model.name, lora.name, lora.note)
        for note in model.folder.notes:
            logger.info("%s: %s", model.name, note)
        if model.prompts:
            from server.requests.prompts import SCORING, has_prompts, in_words  # few models have them

            if has_prompts(model) and model.folder.task not in SCORING:
                logger.info("%s: %s (source: %s)", model.name, in_words(model), model.folder.prompts_source)
    if prepared.access.keys:
        logger.info("requests need one of %d API key(s)", len(prepared.access.keys))
        return
    if os.environ.keys() & {"API_KEY", f"{PREFIX}API_KEY"}:
        logger.warning("the variable API_KEY is empty, so no request needs a key")
    if not is_loopback(host):
        logger.warning(
            "NO API KEY: anyone who can reach %s:%d can use this server; set API_KEY or --api-key-file", host, port
        )


async def _supervise(
    settings: Settings,
    prepared: Prepared,
    folder: SocketFolder,
    relay: StderrRelay,
    *,
    early: EarlyEngine,
    signals: Sequence[int],
) -> int:
    ports = prepared.ports
    topology = Topology(
        settings,
        prepared.models,
        folder=folder,
        http=ports.http.sockets,
        uds=ports.uds.socket if ports.uds is not None else None,
        feature_ports={name: host_and_port(kept) for name, kept in ports.features.items()},
        access=prepared.access,
        cache_dir=prepared.cache_dir,
        early=early,
    )
    if not early.is_taken:  # it can't be the first engine
        early.end()
    placement = topology.placement
    logger.info("topology %s (%s)", placement.name, placement.reason)
    supervisor = Supervisor(
        topology,
        prepared.models,
        settings,
        http=[ports.http] if ports.uds is None else [ports.http, ports.uds],
        limits=_limits(settings, placement),
        accepts_at_once=ports.predecessor is None,
    )
    loop = asyncio.get_running_loop()
    relay.on_dropped = lambda number: loop.call_soon_threadsafe(supervisor.count_dropped_lines, number)
    keys = Keys(prepared.access.keys, metrics_auth=settings.metrics_auth, file=prepared.access.key_file)
    hosts = Hosts(prepared.access.hosts, origins=settings.cors_allow_origin)
    page = make_monitor(supervisor.metrics.text, supervisor.why_not_ready, keys, hosts)
    monitoring = HttpServer(
        page,
        ports.monitor.sockets if ports.monitor is not None else [],
        max_connections=resources.MONITOR_CONNECTIONS,
        keep_alive_timeout=_MONITOR_IDLE_SECONDS,
    )
    succession = Succession(supervisor, ports, monitoring, devices=prepared.devices)
    await succession.start()
    try:
        return await supervisor.run(
            drain_delay=settings.drain_delay, shutdown_seconds=settings.shutdown_timeout, early=signals
        )
    finally:
        relay.on_dropped = lambda number: None
        await monitoring.stop(0)
        succession.close()


def _limits(settings: Settings, placement: Placement) -> Json:
    """What /info shows of the settings, under TEI's names; of several models, those of the first."""
    model = settings.models[0]
    return {
        "max_concurrent_requests": settings.max_concurrent_requests,
        "max_batch_tokens": model.max_batch_tokens or _AUTO_BATCH_TOKENS,
        "max_batch_requests": model.max_batch_requests,
        "max_client_batch_size": settings.max_client_batch_size,
        "payload_limit": settings.payload_limit,
        "auto_truncate": model.auto_truncate,
        "interactive_max_wait": settings.interactive_max_wait,
        "bulk_max_wait": settings.bulk_max_wait,
        "tokenization_workers": placement.num_tokenizers,
        "frontends": placement.num_frontends,
        "topology": {"name": placement.name, "reason": placement.reason},
    }

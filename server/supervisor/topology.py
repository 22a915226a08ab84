"""Which processes make up a server with these settings, and how they find each other.

Binds every listening socket once and keeps it, so that the process that serves it can be restarted.
"""

import dataclasses
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from batch_manager.client import ManagerAddress
from batch_manager.messages import EngineAddress, ManagerStart, Policy
from engine import registry
from engine.messages import EngineStart
from server.features.jobs.messages import JobsStart
from server.features.pipelines.messages import PipelinesStart
from server.frontend.start import FrontendStart, JobsAddress, PipelinesAddress
from server.requests.admission import WaitBudgets
from server.requests.row_memory import MAX_HELD_BYTES
from server.settings.api_keys import ApiKey, KeyFile
from server.settings.settings import Settings
from server.supervisor import resources
from server.supervisor.child import Plan
from server.supervisor.model_plan import ModelPlan, engine_options
from server.supervisor.resources import cpu_threads, memory_shares
from server.supervisor.socket_folder import ListeningSocket, SocketFolder
from tokenizer_pool.messages import TokenizerSpec, TokenizerStart
from wire.page import Page

_JOBS_SHARE = 4  # of --max-concurrent-requests, what jobs may have open at a time …
_MAX_JOBS_IN_FLIGHT = 128  # … and never more: enough to fill batches of single texts
_PIPELINES_SHARE = 4  # of --max-concurrent-requests: the rest is for the requests of their steps …
_MAX_PIPELINE_RUNS = 128  # … and never more
_OPEN_PAYLOAD_FACTOR = 16  # --payload-limit times this, at least 1 GiB, over all open bodies
_GIB = 1 << 30
_ENGINES_PER_MANAGER = 2  # by default
_SPARE_KEYS = 64  # that may be added to the key file while the server runs; more share their places on the page


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """One engine process: a model on a device."""

    socket: ListeningSocket
    model: int
    device: str
    num_threads: int  # of the CPU


class Topology:
    """The plans of all processes, in the order in which they are started."""

    def __init__(
        self,
        settings: Settings,
        models: Sequence[ModelPlan],
        *,
        folder: SocketFolder,
        http: Sequence[socket.socket],
        uds: socket.socket | None = None,
        grpc_address: str | None = None,
        keys: Sequence[ApiKey] = (),
        key_file: KeyFile | None = None,
        ssl_copies: Sequence[int] = (),
        hosts: tuple[str, ...] | None = None,
        cache_dir: str | None = None,
    ) -> None:
        """The sockets of `http` listen already, and so does `uds`, a Unix socket. At `grpc_address` the frontends
        listen themselves. Without `keys` no request needs one; some may be of `key_file`. `ssl_copies` are descriptors,
        as server.http.tls has them. `hosts` are what requests may name, as server.http.hosts has them.
        `cache_dir` is where engines keep what they have compiled; None keeps nothing. Raises SettingsError where there
        are too few threads for the engines on the CPU, or the memory shares of a GPU exceed it."""
        self._settings = settings
        self._models = models
        self._http = http
        self._uds = uds
        self._grpc_address = grpc_address
        self._keys = keys
        self._key_file = key_file
        self._ssl_copies = ssl_copies
        self._hosts = hosts
        self._cache_dir = cache_dir
        self._memory_shares = memory_shares(models)
        pairs = [(index, device) for index, model in enumerate(models) for device in model.devices.names]
        num_managers = settings.batch_managers or max(1, len(pairs) // _ENGINES_PER_MANAGER)
        self.page = Page.create(
            num_frontends=settings.frontends,
            num_managers=num_managers,
            num_models=len(models),
            num_keys=len(keys) + _SPARE_KEYS if keys else 1,
        )
        threads = iter(cpu_threads(settings.cpu_threads, models))
        self._engines = [
            EngineProcess(listening, model, device, next(threads) if device == registry.CPU else 1)
            for listening, (model, device) in zip(_listen(folder, "engine", len(pairs)), pairs, strict=True)
        ]
        # without processes of their own there is one tokenizer in each frontend
        self._tokenizers = _listen(folder, "tokenizer", settings.tokenization_workers or settings.frontends)
        self._managers = _listen(folder, "batch-manager", num_managers)
        self._jobs = JobsSockets.listen(folder) if settings.jobs is not None else None
        self._pipelines = PipelinesSockets.listen(folder) if settings.pipelines is not None else None

    def plans(self) -> list[Plan]:
        """Engines first: they take longest."""
        plans = [
            *(self._engine(index, engine) for index, engine in enumerate(self._engines)),
            *(self._tokenizer(index) for index in range(self._settings.tokenization_workers)),
            *(self._manager(index, listening) for index, listening in enumerate(self._managers)),
            *([jobs_process(self._jobs, self._settings)] if self._jobs else []),
            *([pipelines_process(self._pipelines, self._settings)] if self._pipelines else []),
            *(self._frontend(index) for index in range(self._settings.frontends)),
        ]
        log_level, json_output = self._settings.log_level, self._settings.json_output
        return [dataclasses.replace(plan, log_level=log_level, json_output=json_output) for plan in plans]

    def _engine(self, index: int, engine: EngineProcess) -> Plan:
        model = self._models[engine.model]
        start = EngineStart(
            listener_fd=engine.socket.fd,
            engine=model.engine,
            model=model.name,
            reason=model.reason,
            options=engine_options(
                model,
                engine.device,
                cache_dir=self._cache_dir,
                max_cache_bytes=self._settings.compiled_cache_limit,
                num_threads=engine.num_threads,
                memory_share=self._memory_shares[engine.model].get(engine.device, 1.0),
            ),
        )
        return Plan(
            role="engine",
            index=index,
            module="engine.worker",
            python=self._settings.engine_python,
            fds=(engine.socket.fd,),
            model=engine.model,
            start=start,
        )

    def _tokenizer(self, index: int) -> Plan:
        start = self._tokenizer_start(index)
        return Plan(
            role="tokenizer",
            index=index,
            module="tokenizer_pool.worker",
            python=sys.executable,
            fds=(start.listener_fd,),
            start=start,
        )

    def _tokenizer_start(self, index: int) -> TokenizerStart:
        return TokenizerStart(
            listener_fd=self._tokenizers[index].fd,
            models=[model.name for model in self._models],
            tokenizers=[tokenizer_spec(model) for model in self._models],
        )

    def _manager(self, index: int, listening: ListeningSocket) -> Plan:
        start = ManagerStart(
            listener_fd=listening.fd,
            page_fd=self.page.fd,
            models=[model.name for model in self._models],
            engines=self._engines_of(index),
            policy=Policy(
                max_batch_tokens=self._max_batch_tokens, engine_restart_grace=self._settings.engine_restart_grace
            ),
        )
        return Plan(
            role="batch manager",
            index=index,
            module="batch_manager.worker",
            python=sys.executable,
            fds=(listening.fd, self.page.fd),
            start=start,
        )

    @property
    def _max_batch_tokens(self) -> int | None:
        """The limit that all models share. Where they differ it is None, and each engine keeps its own."""
        asked = {model.settings.max_batch_tokens for model in self._models}
        return asked.pop() if len(asked) == 1 else None

    def _engines_of(self, manager: int) -> list[EngineAddress]:
        """The managers split the engines between them; each has at least one."""
        engines = [EngineAddress(one.socket.path, one.model, index) for index, one in enumerate(self._engines)]
        return engines[manager :: len(self._managers)]

    def _frontend(self, index: int) -> Plan:
        start = self._frontend_start(index)
        own = [more.listener_fd for more in (start.tokenizer, start.pipelines) if more]
        return Plan(
            role="frontend",
            index=index,
            module="server.frontend.main",
            python=sys.executable,
            fds=(*self._listener_fds, *self._ssl_copies, self.page.fd, *own),
            start=start,
        )

    @property
    def _listener_fds(self) -> list[int]:
        """The sockets of the HTTP port, the Unix socket, and that of the jobs process. Every frontend accepts from all:
        none depends on one."""
        more = [self._uds, self._jobs.http.listener if self._jobs else None]
        return [listener.fileno() for listener in (*self._http, *more) if listener is not None]

    def _tokenizer_paths(self, frontend: int) -> list[str]:
        """Each frontend begins with another one: where all are idle, frontends don't choose the same."""
        paths = [listening.path for listening in self._tokenizers]
        if not self._settings.tokenization_workers:
            return [paths[frontend]]
        first = frontend % len(paths)
        return [*paths[first:], *paths[:first]]

    def _frontend_start(self, index: int) -> FrontendStart:
        settings = self._settings
        managers = [
            ManagerAddress(listening.path, tuple(sorted({engine.model for engine in self._engines_of(manager)})))
            for manager, listening in enumerate(self._managers)
        ]
        return FrontendStart(
            listener_fds=self._listener_fds,
            grpc_address=self._grpc_address,
            page_fd=self.page.fd,
            tokenizer_paths=self._tokenizer_paths(index),
            tokenizer=None if settings.tokenization_workers else self._tokenizer_start(index),
            max_seqlens=[model.folder.max_seqlen for model in self._models],
            managers=managers,
            wait_budgets=WaitBudgets(settings.interactive_max_wait, settings.bulk_max_wait),
            max_connections=self._max_connections,
            # the limits of the whole server, shared out among its frontends
            max_concurrent_requests=-(-settings.max_concurrent_requests // settings.frontends),
            max_held_bytes=MAX_HELD_BYTES // settings.frontends,
            max_client_batch_size=settings.max_client_batch_size,
            compress_answers=settings.compress_answers,
            payload_limit=settings.payload_limit,
            open_payload_limit=max(settings.payload_limit, self._open_payload_limit // settings.frontends),
            shutdown_timeout=settings.shutdown_timeout,
            keys=list(self._keys),
            key_file=self._key_file,
            metrics_auth=settings.metrics_auth,
            strict_model_name=settings.strict_model_name,
            rerank_document_format=settings.rerank_document_format,
            token_ids=settings.token_ids,
            tiktoken_vocabulary=settings.tiktoken_vocabulary,
            url_prefix=settings.url_prefix,
            keep_alive_timeout=settings.keep_alive_timeout,
            cors_allow_origin=list(settings.cors_allow_origin),
            hosts=self._hosts,
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
            ssl_copies=list(self._ssl_copies),
            request_log=settings.request_log,
            request_log_sample_rate=settings.request_log_sample_rate,
            jobs=JobsAddress(self._jobs.calls.path, self._jobs.secret) if self._jobs else None,
            pipelines=self._pipelines.address if self._pipelines else None,
        )

    @property
    def _max_connections(self) -> int:
        """Of each port of a frontend."""
        found = resources.max_connections(num_peers=len(self._tokenizers) + len(self._managers))
        return found if self._grpc_address is None else found // 2

    @property
    def _open_payload_limit(self) -> int:
        return max(_GIB, _OPEN_PAYLOAD_FACTOR * self._settings.payload_limit)


def _listen(folder: SocketFolder, role: str, num: int) -> list[ListeningSocket]:
    return [ListeningSocket(*folder.listen(f"{role}-{index}")) for index in range(num)]


def tokenizer_spec(model: ModelPlan) -> TokenizerSpec:
    """What a tokenizer worker needs to know of the model."""
    folder = model.folder
    return TokenizerSpec(
        folder=str(folder.path / folder.tokenizer_folder),
        max_seqlen=folder.max_seqlen,
        do_lower_case=folder.do_lower_case,
        vocab_size=folder.vocab_size,
        template=folder.template.parts if folder.template else (),
        as_it_stands=folder.is_static,
        marks_prompts=not folder.include_prompt,
    )


@dataclass(frozen=True, slots=True)
class JobsSockets:
    """How frontends and the jobs process reach each other."""

    calls: ListeningSocket  # where the process takes calls of frontends
    http: ListeningSocket  # where frontends take its requests
    secret: str  # which it sends with them

    @staticmethod
    def listen(folder: SocketFolder) -> "JobsSockets":
        """Bound and kept here, so that either side may be restarted."""
        calls, http = (ListeningSocket(*folder.listen(name)) for name in ("jobs", "jobs-http"))
        return JobsSockets(calls, http, secrets.token_hex(32))


def jobs_process(sockets: JobsSockets, settings: Settings) -> Plan:
    """The plan. There is a folder in the settings."""
    assert settings.jobs is not None
    start = JobsStart(
        listener_fd=sockets.calls.fd,
        folder=settings.jobs,
        redis=settings.jobs_redis,
        files=settings.jobs_files,
        waits_for_folder=settings.takeover,
        quota=settings.jobs_quota,
        result_ttl=settings.jobs_result_ttl,
        batch_ttl=settings.jobs_batch_ttl,
        key_share=settings.jobs_key_share,
        webhook_secrets=settings.jobs_webhook_secrets,
        private_webhooks=settings.jobs_private_webhooks,
        http_path=sockets.http.path,
        secret=sockets.secret,
        max_in_flight=max(1, min(_MAX_JOBS_IN_FLIGHT, settings.max_concurrent_requests // _JOBS_SHARE)),
    )
    return Plan(
        role="jobs",
        index=0,
        module="server.features.jobs.main",
        python=sys.executable,
        fds=(start.listener_fd,),
        start=start,
    )


@dataclass(frozen=True, slots=True)
class PipelinesSockets:
    """How frontends and the pipelines process reach each other."""

    runs: ListeningSocket  # where the process takes runs of frontends
    http: ListeningSocket  # where frontends take the requests of its steps
    secret: str  # which these carry

    @property
    def address(self) -> PipelinesAddress:
        """What frontends are told."""
        return PipelinesAddress(self.runs.path, self.secret, self.http.fd)

    @staticmethod
    def listen(folder: SocketFolder) -> "PipelinesSockets":
        """Bound and kept here, so that either side may be restarted."""
        runs, http = (ListeningSocket(*folder.listen(name)) for name in ("pipelines", "pipelines-http"))
        return PipelinesSockets(runs, http, secrets.token_hex(32))


def pipelines_process(sockets: PipelinesSockets, settings: Settings) -> Plan:
    """The plan. There is a file in the settings."""
    assert settings.pipelines is not None
    start = PipelinesStart(
        listener_fd=sockets.runs.fd,
        file=os.path.abspath(settings.pipelines),
        http_path=sockets.http.path,
        secret=sockets.secret,
        max_runs=max(1, min(_MAX_PIPELINE_RUNS, settings.max_concurrent_requests // _PIPELINES_SHARE)),
    )
    return Plan(
        role="pipelines",
        index=0,
        module="server.features.pipelines.main",
        python=sys.executable,
        fds=(start.listener_fd,),
        start=start,
    )

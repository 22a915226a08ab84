"""Says which processes make up a server with these settings, and how they find each other.

Binds every listening socket once and keeps it, so that the process that serves it can be restarted.
"""

import dataclasses
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from batch_manager.messages import EngineAddress, ManagerAddress, ManagerStart, Policy
from engine import registry
from engine.messages import EngineStart
from server.feature import loaded
from server.frontend.start import Access, FeatureStart, FrontendStart, ProcessAddress
from server.requests.row_memory import MAX_HELD_BYTES
from server.settings.http_flags import HttpFlags, LimitFlags, LogFlags
from server.settings.settings import Settings
from server.supervisor import resources
from server.supervisor.child import Plan
from server.supervisor.model_plan import ModelPlan, engine_options
from server.supervisor.placement import place
from server.supervisor.resources import cpu_threads, memory_shares
from server.supervisor.socket_folder import FeatureSockets, ListeningSocket, SocketFolder
from server.supervisor.spawn import ENGINE, EarlyEngine
from tokenizer_pool.messages import TokenizerSpec, TokenizerStart
from wire.page import Page

_OPEN_PAYLOAD_FACTOR = 16  # --payload-limit times this, at least 1 GiB, over all open bodies
_GIB = 1 << 30
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
        feature_ports: Mapping[str, str] = MappingProxyType({}),
        access: Access | None = None,
        cache_dir: str | None = None,
        early: EarlyEngine | None = None,
    ) -> None:
        """The sockets of `http` listen already, and so does `uds`, a Unix socket. At `feature_ports`, host:port by the
        name of a feature, the frontends listen themselves. Without `access` everybody may use the server. `cache_dir`
        is where engines keep what they have compiled; None keeps nothing. `early` becomes the first engine where it
        can be that. Raises SettingsError where the topology that
        is asked for can't be, there are too few threads for the engines on the CPU, or the memory shares of a GPU
        exceed it."""
        self._settings = settings
        self._models = models
        self._http = http
        self._uds = uds
        self._feature_ports = feature_ports
        self._access = access or Access()
        self._cache_dir = cache_dir
        self._memory_shares = memory_shares(models)
        self.placement = place(settings, models)
        pairs = [(index, device) for index, model in enumerate(models) for device in model.devices.names]
        self.page = Page.create(
            num_frontends=self.placement.num_frontends,
            num_managers=self.placement.num_managers or 1,
            num_models=len(models),
            num_keys=len(self._access.keys) + _SPARE_KEYS if self._access.keys else 1,
        )
        taken = early.take() if early is not None and _suits_early(models[0]) else None
        self._early = taken and taken[1]
        threads = iter(cpu_threads(settings.cpu_threads, models))
        self._engines = [
            EngineProcess(listening, model, device, next(threads) if device == registry.CPU else 1)
            for listening, (model, device) in zip(
                _listen(folder, "engine", len(pairs), first=taken and taken[0]), pairs, strict=True
            )
        ]
        self._tokenizers = _listen(folder, "tokenizer", self.placement.num_tokenizers)
        self._managers = _listen(folder, "batch-manager", self.placement.num_managers)
        self._features = [one for one, _ in settings.features_on() if not one.has_port or one.name in feature_ports]
        self._sockets_of = {one.name: FeatureSockets.listen(folder, one.name) for one in self._features if one.process}

    def plans(self) -> list[Plan]:
        """Engines first: they take longest."""
        plans = [
            *(self._engine(index, engine) for index, engine in enumerate(self._engines)),
            *(self._tokenizer(index) for index in range(self.placement.num_tokenizers)),
            *(self._manager(index, listening) for index, listening in enumerate(self._managers)),
            *(
                loaded(feature.process)(self._settings, self._sockets_of[feature.name])
                for feature in self._features
                if feature.process
            ),
            *(self._frontend(index) for index in range(self.placement.num_frontends)),
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
            spin_seconds=model.settings.latency_spin / 1000,
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
            module=ENGINE,
            python=self._settings.engine_python,
            fds=(engine.socket.fd,),
            model=engine.model,
            start=start,
            oom_score=500,  # it holds the most, and its end costs no answer
            early=self._early if index == 0 else None,
        )

    def _tokenizer(self, index: int) -> Plan:
        listener_fd = self._tokenizers[index].fd
        return Plan(
            role="tokenizer",
            index=index,
            module="tokenizer_pool.worker",
            fds=(listener_fd,),
            start=self._tokenizer_start(listener_fd),
            oom_score=300,
        )

    def _tokenizer_start(self, listener_fd: int | None) -> TokenizerStart:
        return TokenizerStart(
            listener_fd=listener_fd,
            models=[model.name for model in self._models],
            tokenizers=[tokenizer_spec(model) for model in self._models],
        )

    def _manager(self, index: int, listening: ListeningSocket) -> Plan:
        return Plan(
            role="batch manager",
            index=index,
            module="batch_manager.worker",
            fds=(listening.fd, self.page.fd),
            start=self._manager_start(index, listening.fd),
            oom_score=200,
        )

    def _manager_start(self, index: int, listener_fd: int | None) -> ManagerStart:
        asked = {model.settings.max_batch_tokens for model in self._models}
        return ManagerStart(
            listener_fd=listener_fd,
            page_fd=self.page.fd,
            models=[model.name for model in self._models],
            engines=self._engines_of(index),
            policy=Policy(
                # the limit that all models share; where they differ each engine keeps its own
                max_batch_tokens=asked.pop() if len(asked) == 1 else None,
                engine_restart_grace=self._settings.engine_restart_grace,
            ),
        )

    def _engines_of(self, manager: int) -> list[EngineAddress]:
        """The managers split the engines between them; each has at least one."""
        engines = [EngineAddress(one.socket.path, one.model, index) for index, one in enumerate(self._engines)]
        return engines[manager :: self.page.num_managers]

    def _frontend(self, index: int) -> Plan:
        start = self._frontend_start(index)
        own = [one.process.listener_fd for one in start.features if one.process]
        return Plan(
            role="frontend",
            index=index,
            module="server.frontend.main",
            fds=(*self._listener_fds, *self._access.ssl_copies, self.page.fd, *own),
            start=start,
            oom_score=100,  # its connections are lost with it
            takes_state=True,
            inside=self._inside,
        )

    @property
    def _inside(self) -> tuple[str, ...]:
        """The other roles whose work frontends do."""
        return (*([] if self._tokenizers else ["tokenizer"]), *([] if self._managers else ["batch manager"]))

    @property
    def _listener_fds(self) -> list[int]:
        """The sockets of the HTTP port, and the Unix socket. Every frontend accepts from all: none depends on one."""
        return [listener.fileno() for listener in (*self._http, self._uds) if listener is not None]

    def _tokenizer_paths(self, frontend: int) -> list[str]:
        """Each frontend begins with another one: where all are idle, frontends don't choose the same."""
        paths = [listening.path for listening in self._tokenizers]
        first = frontend % max(1, len(paths))
        return [*paths[first:], *paths[:first]]

    def _frontend_start(self, index: int) -> FrontendStart:
        settings, limits = self._settings, self._settings.part(LimitFlags)
        num_frontends = self.placement.num_frontends
        share = -(-limits.max_concurrent_requests // num_frontends)  # the server's limit is shared out
        peers = (self._tokenizers, self._managers or self._engines)
        most_connections = resources.max_connections(num_peers=sum(map(len, peers)))
        managers = [
            ManagerAddress(listening.path, tuple(sorted({engine.model for engine in self._engines_of(manager)})))
            for manager, listening in enumerate(self._managers)
        ]
        open_payloads = max(_GIB, _OPEN_PAYLOAD_FACTOR * settings.payload_limit)
        return FrontendStart(
            listener_fds=self._listener_fds,
            page_fd=self.page.fd,
            tokenizer_paths=self._tokenizer_paths(index),
            tokenizer=None if self._tokenizers else self._tokenizer_start(None),
            max_seqlens=[model.folder.max_seqlen for model in self._models],
            managers=managers,
            manager=None if self._managers else self._manager_start(0, None),
            http=settings.part(HttpFlags),
            access=self._access,
            limits=dataclasses.replace(limits, max_concurrent_requests=share),
            log=settings.part(LogFlags),
            max_connections=most_connections // (1 + len(self._feature_ports)),  # of each port
            max_held_bytes=MAX_HELD_BYTES // num_frontends,
            open_payload_limit=max(settings.payload_limit, open_payloads // num_frontends),
            shutdown_timeout=settings.shutdown_timeout,
            features=[self._feature_start(feature.name) for feature in self._features],
        )

    def _feature_start(self, name: str) -> FeatureStart:
        sockets = self._sockets_of.get(name)
        process = ProcessAddress(sockets.calls.path, sockets.secret, sockets.http.fd) if sockets else None
        return FeatureStart(name, process, self._feature_ports.get(name))


def _suits_early(model: ModelPlan) -> bool:
    """Whether OpenVINO, which such a process has imported, may serve the model on its first device."""
    return model.engine in (registry.AUTO, registry.OPENVINO) and model.devices.names[0] == registry.CPU


def _listen(folder: SocketFolder, role: str, num: int, *, first: socket.socket | None = None) -> list[ListeningSocket]:
    return [folder.listen(f"{role}-{index}", None if index else first) for index in range(num)]


def tokenizer_spec(model: ModelPlan) -> TokenizerSpec:
    """The spec of a tokenizer worker for the model."""
    folder = model.folder
    return TokenizerSpec(
        folder=str(folder.path / folder.tokenizer_folder),
        max_seqlen=folder.max_seqlen,
        do_lower_case=folder.do_lower_case,
        vocab_size=folder.vocab_size,
        template=folder.template.parts if folder.template else (),
        chat_pairs=folder.template.chat if folder.template else None,
        instruction=folder.template.instruction if folder.template else "",
        chat_of_texts=folder.chat_of_texts,
        as_it_stands=folder.is_static,
        marks_prompts=not folder.include_prompt,
    )

"""Which processes make up a server with these settings, and how they find each other.

Binds every listening socket once and keeps it, so that whoever serves it can die and come back.
"""

import dataclasses
import os
import socket
import sys
from dataclasses import dataclass

from engine.model_folder import ModelFolder
from server.member import Plan
from server.run_folder import RunFolder
from server.settings import Settings
from tokenizer_pool.tokenizer import TokenizerSpec
from wire.control import Json
from wire.page import Page

_OPEN_PAYLOAD_FACTOR = 16  # --payload-limit times this, at least 1 GiB, over all open bodies
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """A model as it will be served."""

    name: str
    engine: str
    reason: str  # why this engine
    folder: ModelFolder
    source: str  # "local folder", "hub", …
    revision: str  # commit, "" where not known
    default_prompt: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A listening Unix socket."""

    listener: socket.socket
    path: str


class House:
    """The plans of all processes, in the order in which they are started."""

    def __init__(self, settings: Settings, model: ModelPlan, folder: RunFolder, http: socket.socket) -> None:
        self._settings = settings
        self._model = model
        self._http = http
        self.page = Page.create(
            num_frontends=settings.frontends, num_managers=settings.num_batch_managers, num_models=1
        )
        self._engines = [Endpoint(*folder.listen(f"engine-{i}")) for i in range(len(settings.device_list))]
        self._tokenizers = [Endpoint(*folder.listen(f"tokenizer-{i}")) for i in range(settings.tokenization_workers)]
        self._managers = [Endpoint(*folder.listen(f"batch-manager-{i}")) for i in range(settings.num_batch_managers)]

    def plans(self) -> list[Plan]:
        """Engines first: they take longest."""
        return [
            *(self._engine(index) for index in range(len(self._engines))),
            *(self._tokenizer(index) for index in range(len(self._tokenizers))),
            *(self._manager(index) for index in range(len(self._managers))),
            *(self._frontend(index) for index in range(self._settings.frontends)),
        ]

    @property
    def _open_payload_limit(self) -> int:
        return max(_GIB, _OPEN_PAYLOAD_FACTOR * self._settings.payload_limit)

    def stop_listening(self) -> None:
        """Let go of the HTTP port; it closes with the last frontend that serves it."""
        self._http.close()

    def _engine(self, index: int) -> Plan:
        listener = self._engines[index].listener
        return Plan(
            role="engine",
            index=index,
            module="engine.worker",
            python=self._settings.engine_python,
            fds=(listener.fileno(),),
            spec={
                "listener_fd": listener.fileno(),
                "engine": self._model.engine,
                "reason": self._model.reason,
                "model": self._model.name,
                "options": self._engine_options(index),
            },
        )

    def _engine_options(self, index: int) -> Json:
        settings, folder = self._settings, self._model.folder
        options: Json = {
            "device": settings.device_list[index],
            "max_num_tokens": settings.max_batch_tokens,
            "max_num_seqs": settings.max_batch_requests,
        }
        if self._model.engine == "fake":
            return {
                **options,
                "dimensions": settings.fake_dim,
                "max_seqlen": folder.max_seqlen,
                "vocab_size": folder.vocab_size,
                "cost_ms": settings.fake_cost_ms,
                "tokens_per_second": settings.fake_tokens_per_second,
                "faults": list(settings.fake_fault),
            }
        return {
            **options,
            "path": str(folder.path),
            "dtype": settings.dtype,
            "pooling": settings.pooling,
            # engines on the CPU share its cores; a single one takes them all
            "num_threads": max(1, (os.cpu_count() or 1) // len(settings.device_list)),
        }

    def _tokenizer(self, index: int) -> Plan:
        listener, folder = self._tokenizers[index].listener, self._model.folder
        spec = TokenizerSpec(folder=str(folder.path), max_seqlen=folder.max_seqlen, do_lower_case=folder.do_lower_case)
        return Plan(
            role="tokenizer",
            index=index,
            module="tokenizer_pool.worker",
            python=sys.executable,
            fds=(listener.fileno(),),
            spec={
                "listener_fd": listener.fileno(),
                "models": [self._model.name],
                "tokenizers": [dataclasses.asdict(spec)],
            },
        )

    def _manager(self, index: int) -> Plan:
        listener = self._managers[index].listener
        # the managers split the engines between them; the first has at least one, or start says so
        engines = self._engines[index :: len(self._managers)]
        return Plan(
            role="batch manager",
            index=index,
            module="batch_manager.worker",
            python=sys.executable,
            fds=(listener.fileno(), self.page.fd),
            spec={
                "listener_fd": listener.fileno(),
                "page_fd": self.page.fd,
                "models": [self._model.name],
                "engines": [{"path": engine.path, "model": 0} for engine in engines],
                "policy": {
                    "max_batch_tokens": self._settings.max_batch_tokens,
                    "engine_restart_grace": self._settings.engine_restart_grace,
                },
            },
        )

    def _frontend(self, index: int) -> Plan:
        settings = self._settings
        return Plan(
            role="frontend",
            index=index,
            module="server.frontend",
            python=sys.executable,
            fds=(self._http.fileno(), self.page.fd),
            spec={
                "listener_fd": self._http.fileno(),
                "page_fd": self.page.fd,
                "tokenizer_paths": [endpoint.path for endpoint in self._tokenizers],
                "max_seqlens": [self._model.folder.max_seqlen],
                "managers": [{"path": endpoint.path, "models": [0]} for endpoint in self._managers],
                "wait_budgets": {"interactive": settings.interactive_max_wait, "bulk": settings.bulk_max_wait},
                # the limits of the whole server, shared out among its frontends
                "max_concurrent_requests": -(-settings.max_concurrent_requests // settings.frontends),
                "max_client_batch_size": settings.max_client_batch_size,
                "payload_limit": settings.payload_limit,
                "open_payload_limit": max(settings.payload_limit, self._open_payload_limit // settings.frontends),
                "shutdown_timeout": settings.shutdown_timeout,
            },
        )

"""The START message of a frontend: a record for each of its parts."""

from dataclasses import dataclass, field

from batch_manager.messages import ManagerAddress, ManagerStart
from server.settings.api_keys import ApiKey, KeyFile
from server.settings.http_flags import HttpFlags, LimitFlags, LogFlags
from tokenizer_pool.messages import TokenizerStart


@dataclass(frozen=True, slots=True)
class ProcessAddress:
    """The address by which a frontend reaches the process of a feature, and knows its requests."""

    path: str  # of a Unix socket
    secret: str  # which its requests carry
    listener_fd: int  # where they come in


@dataclass(frozen=True, slots=True)
class FeatureStart:
    """A feature that is on."""

    name: str
    process: ProcessAddress | None = None  # None = it has none
    port: str | None = None  # host:port, where all frontends listen for it; None = it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The keys that may use the server, and what it shows them."""

    keys: list[ApiKey] = field(default_factory=list)  # none = no key is needed
    key_file: KeyFile | None = None  # where some of them come from
    hosts: tuple[str, ...] | None = None  # that requests may name, besides loopback; None = any
    ssl_copies: list[int] = field(default_factory=list)  # descriptors of the certificate's files at the server's start


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendStart:
    """Limits are this frontend's share of the server's."""

    listener_fds: list[int]  # of the HTTP port, and the Unix socket
    features: list[FeatureStart]
    page_fd: int  # the shared page
    tokenizer_paths: list[str]  # of Unix sockets; none where the tokenizer is in the frontend
    tokenizer: TokenizerStart | None  # of one on the frontend's own event loop, where there are no tokenizer processes
    max_seqlens: list[int]  # tokens of a text, for each model
    managers: list[ManagerAddress]  # none where the batch manager is in the frontend
    manager: ManagerStart | None = None  # of one on the frontend's own event loop, in the compact topology
    http: HttpFlags
    access: Access
    limits: LimitFlags
    log: LogFlags
    max_connections: int  # over HTTP, and as many on the port of each feature
    max_held_bytes: int  # of large requests' rows and answers
    open_payload_limit: int  # bytes of all open bodies
    shutdown_timeout: float  # seconds

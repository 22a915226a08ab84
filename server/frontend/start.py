"""The START message of a frontend."""

from dataclasses import dataclass

from batch_manager.client import ManagerAddress
from server.requests.admission import WaitBudgets
from server.settings.api_keys import ApiKey, KeyFile
from tokenizer_pool.messages import TokenizerStart


@dataclass(frozen=True, slots=True)
class ProcessAddress:
    """How a frontend reaches the process of a feature, and knows its requests."""

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
class FrontendStart:
    """Limits are this frontend's share of the server's."""

    listener_fds: list[int]  # of the HTTP port, and the Unix socket
    features: list[FeatureStart]
    page_fd: int  # the shared page
    tokenizer_paths: list[str]  # of Unix sockets
    tokenizer: TokenizerStart | None  # of one on the frontend's own event loop, where there are no tokenizer processes
    max_seqlens: list[int]  # tokens of a text, for each model
    managers: list[ManagerAddress]
    wait_budgets: WaitBudgets
    max_connections: int  # over HTTP, and as many on the port of each feature
    max_concurrent_requests: int
    max_held_bytes: int  # of large requests' rows and answers
    max_client_batch_size: int  # items of a request
    compress_answers: bool  # in JSON, for clients that accept it
    payload_limit: int  # bytes of a body
    open_payload_limit: int  # bytes of all open bodies
    shutdown_timeout: float  # seconds
    keys: list[ApiKey]  # none = no key is needed
    key_file: KeyFile | None  # where some of them come from
    metrics_auth: bool  # whether /metrics needs a key too
    strict_model_name: bool
    rerank_document_format: str  # object, string
    token_ids: str  # native, cl100k, any, reject
    tiktoken_vocabulary: str | None  # a file; None = that of an installed package
    url_prefix: str  # that may stand before every path
    keep_alive_timeout: int  # seconds between two requests of a connection
    cors_allow_origin: list[str]
    hosts: tuple[str, ...] | None  # that requests may name, besides loopback; None = any
    ssl_certfile: str | None  # None = no TLS
    ssl_keyfile: str | None  # None = in the same file
    ssl_copies: list[int]  # descriptors of what these files had at the server's start
    request_log: str  # all, errors, off
    request_log_sample_rate: float  # of the requests that were answered

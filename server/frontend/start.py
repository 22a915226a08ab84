"""What START tells a frontend."""

import dataclasses
from dataclasses import dataclass
from typing import Self

from batch_manager.client import ManagerAddress
from server.http.auth import ApiKey
from server.requests.admission import WaitBudgets
from wire.control import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendStart:
    """Goes there by `to_spec` and comes out by `from_spec`. Limits are this frontend's share of the server's."""

    listener_fd: int  # of the HTTP port
    page_fd: int  # the shared page
    tokenizer_paths: list[str]  # of Unix sockets
    max_seqlens: list[int]  # tokens of a text, for each model
    managers: list[ManagerAddress]
    wait_budgets: WaitBudgets
    max_concurrent_requests: int
    max_client_batch_size: int  # items of a request
    payload_limit: int  # bytes of a body
    open_payload_limit: int  # bytes of all open bodies
    shutdown_timeout: float  # seconds
    keys: list[ApiKey]  # none = nobody is asked
    metrics_auth: bool  # whether /metrics asks for a key too
    strict_model_name: bool
    cors_allow_origin: list[str]
    request_log: str  # all, errors, off

    def to_spec(self) -> Json:
        """As JSON has it: digests in hexadecimal."""
        keys = [{"name": key.name, "digest": key.digest.hex()} for key in self.keys]
        return {**dataclasses.asdict(self), "keys": keys}

    @classmethod
    def from_spec(cls, spec: Json) -> Self:
        """`spec` may hold more, such as what every child is told."""
        fields = {name: spec[name] for name in cls.__dataclass_fields__}
        fields["managers"] = [ManagerAddress(one["path"], tuple(one["models"])) for one in spec["managers"]]
        fields["wait_budgets"] = WaitBudgets(**spec["wait_budgets"])
        fields["keys"] = [ApiKey(key["name"], bytes.fromhex(key["digest"])) for key in spec["keys"]]
        return cls(**fields)

"""What START tells a batch manager."""

from dataclasses import dataclass
from typing import Self

from batch_manager.policy import Policy
from wire.control import Json


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where an engine listens, and what it computes."""

    path: str  # of a Unix socket
    model: int  # index


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerStart:
    """Goes there by `dataclasses.asdict` and comes out by `from_spec`."""

    listener_fd: int  # of its listening Unix socket, for frontends
    page_fd: int  # the shared page
    models: list[str]  # names, in the order of their indices
    engines: list[EngineAddress]  # those that are this manager's
    policy: Policy

    @classmethod
    def from_spec(cls, spec: Json) -> Self:
        """`spec` may hold more, such as what every child is told."""
        return cls(
            listener_fd=spec["listener_fd"],
            page_fd=spec["page_fd"],
            models=spec["models"],
            engines=[EngineAddress(**fields) for fields in spec["engines"]],
            policy=Policy(**spec["policy"]),
        )

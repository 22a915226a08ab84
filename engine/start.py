"""What START tells an engine process. Needs the standard library alone."""

from dataclasses import dataclass
from typing import Any, Self

from wire.control import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStart:
    """Goes there by `dataclasses.asdict` and comes out by `from_spec`."""

    listener_fd: int  # of its listening Unix socket
    engine: str  # a name of engine.registry
    model: str  # as served
    reason: str  # why this engine, for the log and /info
    options: dict[str, Any]  # what the engine's `load` takes

    @classmethod
    def from_spec(cls, spec: Json) -> Self:
        """`spec` may hold more, such as what every child is told."""
        return cls(**{name: spec[name] for name in cls.__dataclass_fields__})

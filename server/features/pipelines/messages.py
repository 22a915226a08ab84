"""The messages between frontends and the pipelines process, and START of that process."""

from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinesStart:
    """The START message of the pipelines process."""

    listener_fd: int  # where frontends connect
    file: str  # --pipelines
    http_path: str  # the Unix socket where frontends take the requests of its steps
    secret: str  # with which these act for an API key
    max_runs: int  # at a time


class Run(msgspec.Struct, frozen=True):
    """One request."""

    pipeline: str
    owner: str  # of the API key; "" where the server has no keys
    seconds: float | None  # that the client gives it; None = as many as the pipeline may take
    body: bytes  # as it came
    is_msgpack: bool = False  # the body; else it is JSON
    answers_msgpack: bool = False


class Listed(msgspec.Struct, frozen=True):
    """A pipeline, as GET /pipelines shows it."""

    name: str
    description: str
    steps: list[str]
    timeout: float  # seconds
    input: dict[str, Any]  # JSON schemas
    output: dict[str, Any]

"""The control channel between the supervisor and each process it starts: frames of one JSON object each.

supervisor -> child   START (once, what to do), STATE (the state of the server now), STOP, REPLY, DUMP
child -> supervisor   STAGE (what it does next of its start), READY (once it can serve), SEEN,
                      FAILED (then it exits with 2), HEARTBEAT, REQUEST, DUMPED (what it holds)
"""

import enum
import json
from dataclasses import dataclass
from typing import Any, TypeVar

from wire.dataclass_json import from_json, to_json
from wire.frames import Buffer

START = 0x0100
STATE = 0x0101
STOP = 0x0102
REPLY = 0x0103
DUMP = 0x0104
READY = 0x0110
FAILED = 0x0111
HEARTBEAT = 0x0112
REQUEST = 0x0113
SEEN = 0x0114
DUMPED = 0x0115
STAGE = 0x0116

HEARTBEAT_SECONDS = 0.5

Json = dict[str, Any]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStart:
    """The part of START that every process gets, besides what its role needs."""

    title: str  # as `ps` shows it after "embedline: ": the role and the index
    index: int  # of the process within its role
    log_level: str
    json_output: bool = False  # log one JSON object a line


class ControlRequest(enum.StrEnum):
    """The requests of a child to the supervisor; the answer is a REPLY under the same frame id."""

    METRICS = "metrics"  # the page, as {"text"}
    STATE = "state"  # the state of the server now, as in STATE


def encode(fields: Json) -> list[Buffer]:
    """A control payload."""
    return [json.dumps(fields).encode()]


def decode(payload: Buffer) -> Json:
    """The inverse of `encode`."""
    fields: Json = json.loads(bytes(payload))
    return fields


def encode_start(process: ProcessStart, role: Any) -> list[Buffer]:
    """START. `role` is the dataclass that the process's package defines for it."""
    return encode({"process": to_json(process), "role": to_json(role)})


def decode_start(payload: Buffer, kind: type[_T]) -> tuple[ProcessStart, _T]:
    """The inverse of `encode_start`. Raises ProtocolError where this is no START for a role of this kind."""
    fields = decode(payload)
    return from_json(ProcessStart, fields["process"]), from_json(kind, fields["role"])

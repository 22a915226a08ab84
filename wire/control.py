"""The control channel between the supervisor and each process it starts: frames of one JSON object each.

supervisor -> child   START (once, what to do), STATE (what the house looks like now), STOP, REPLY
child -> supervisor   READY (once it can serve), FAILED (then it exits with 2), HEARTBEAT, REQUEST
"""

import enum
import json
from typing import Any

from wire.frames import Buffer

START = 0x0100
STATE = 0x0101
STOP = 0x0102
REPLY = 0x0103
READY = 0x0110
FAILED = 0x0111
HEARTBEAT = 0x0112
REQUEST = 0x0113
SEEN = 0x0114

HEARTBEAT_SECONDS = 0.5

Json = dict[str, Any]


class Request(enum.StrEnum):
    """What a child may ask of the supervisor; the answer is a REPLY under the same frame id."""

    METRICS = "metrics"  # the page, as {"text"}
    STATE = "state"  # the house as it is now, as in STATE


def encode(fields: Json) -> list[Buffer]:
    """A control payload."""
    return [json.dumps(fields).encode()]


def decode(payload: Buffer) -> Json:
    """The inverse of `encode`."""
    fields: Json = json.loads(bytes(payload))
    return fields

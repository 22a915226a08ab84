"""What a running server and its successor say to each other, over a Unix socket that lives as long as both.

successor -> running server   TAKE, then DRAIN
running server -> successor   a LISTENER with a descriptor for each socket and an OFFER, or REFUSED

The end of the connection is a message too. Before DRAIN: the successor has died, and the running server goes on as if
nothing had been. After it: the running server is gone, and what it used is free.
"""

import json
from dataclasses import dataclass
from typing import Any

from wire.dataclass_json import from_json, to_json
from wire.frames import Buffer

TAKE = 0x0500
DRAIN = 0x0501
LISTENER = 0x0510
OFFER = 0x0511
REFUSED = 0x0512


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """The descriptor that comes with this frame."""

    is_monitor: bool  # whether it is of the monitor port; else of the main one


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What the successor needs to know of the running server. Comes after all listeners."""

    num_bytes: int  # of memory that a second server like it takes beside it
    devices: list[str]  # of all its engines
    kept_elsewhere: bool  # whether systemd keeps the sockets too


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why the successor gets nothing."""

    reason: str  # one line that goes on after "the running server says: "


def encode(message: Any) -> list[Buffer]:
    """The payload of one of the dataclasses here."""
    return [json.dumps(to_json(message)).encode()]


def decode_listener(payload: Buffer) -> Listener:
    """Raises ProtocolError."""
    return from_json(Listener, json.loads(bytes(payload)))


def decode_offer(payload: Buffer) -> Offer:
    """Raises ProtocolError."""
    return from_json(Offer, json.loads(bytes(payload)))


def decode_refused(payload: Buffer) -> Refused:
    """Raises ProtocolError."""
    return from_json(Refused, json.loads(bytes(payload)))

"""Which of several things a client prefers, by its `accept` or `accept-encoding` header."""

import re
from collections.abc import Iterator
from functools import lru_cache

from server.dialects.writing.forms import Container

# Each name with what it means, and how it counts among names of the same weight. Weights have at most three decimals.
# msgpack goes before JSON: it costs less at both ends, and Baseten's client, which reads both, names JSON first.
_BEFORE, _AFTER = 0.0001, -0.0001
_CONTAINERS = {
    b"application/json": (Container.JSON, 0.0),
    b"*/*": (Container.JSON, _AFTER),
    b"application/*": (Container.JSON, _AFTER),
    b"application/msgpack": (Container.MSGPACK, _BEFORE),
    b"application/x-msgpack": (Container.MSGPACK, _BEFORE),
    b"application/vnd.msgpack": (Container.MSGPACK, _BEFORE),
    b"application/octet-stream": (Container.RAW, 0.0),
    b"application/x-npy": (Container.NPY, 0.0),
    b"application/npy": (Container.NPY, 0.0),
}
_WEIGHT = re.compile(rb"\s*q=([01](?:\.\d{0,3})?)\s*")


@lru_cache(maxsize=64)  # a client sends the same value each time
def container(accept: bytes) -> Container:
    """What rows are wanted in: what has the highest weight, of several the first; JSON where nothing is named."""
    best, best_weight = Container.JSON, 0.0
    for name, weight in _weights(accept):
        if weight > 0 and name in _CONTAINERS:
            named, more = _CONTAINERS[name]
            if weight + more > best_weight:
                best, best_weight = named, weight + more
    return best


@lru_cache(maxsize=64)
def coding(accept_encoding: bytes, known: tuple[bytes, ...]) -> bytes | None:
    """Which of the known codings an answer may have: the one with the highest weight, of several the first known."""
    weights = dict(_weights(accept_encoding))
    best = max(known, key=lambda name: weights.get(name, 0.0))
    return best if weights.get(best, 0.0) > 0 else None


def _weights(value: bytes) -> Iterator[tuple[bytes, float]]:
    """Each name in lower case, with its weight; 0 where the weight is nonsense."""
    for item in value.lower().split(b","):
        name, *parameters = item.split(b";")
        weight = 1.0
        for parameter in parameters:
            if parameter.lstrip().startswith(b"q="):
                number = _WEIGHT.fullmatch(parameter)
                weight = float(number[1]) if number else 0.0
        yield name.strip(), weight

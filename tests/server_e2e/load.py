"""Clients that ask without pause and check every row they get."""

import functools
import http.client
import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tests.server_e2e.expected import DIMENSIONS, rows_of
from tests.server_e2e.running import PATIENCE, send

# varied in length and number, small enough to be many
REQUESTS = [
    ["a query of a few words"],
    ["one", "two", "three"],
    [f"passage {number} " + "and more " * number for number in range(20)],
    ["word " * 200],
]


@functools.cache
def requests_of(client: int) -> list[tuple[list[str], NDArray[np.float32]]]:
    """The requests of one client with their rows. No other client has the same texts: equal ones in flight would be
    computed once."""
    own = [[f"{client} {text}" for text in texts] for texts in REQUESTS]
    return [(texts, rows_of(texts)) for texts in own]


# how a client learns that the frontend of its connection was killed: before its answer began, or within it
LOST_WITH_A_FRONTEND = {
    "RemoteDisconnected",
    "IncompleteRead",
    "ConnectionResetError",
    "BrokenPipeError",
    "ConnectionRefusedError",
}


class Connects(Protocol):
    """A server, or what stands before several."""

    def connect(self) -> http.client.HTTPConnection: ...


@dataclass
class Load:
    """Threads that send until told to stop. `outcomes` counts statuses and connection errors."""

    server: Connects
    num_clients: int = 8
    outcomes: Counter[int | str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)
    answered: list[tuple[float, float]] = field(default_factory=list)  # time.monotonic() when sent, seconds; of 200s

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._progress = threading.Condition()
        self._threads = [
            threading.Thread(target=self._ask_forever, args=(number,), daemon=True)
            for number in range(self.num_clients)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in self._threads), "a request hangs"

    def wait_for(self, num_more: int) -> None:
        """Until so many more requests were answered with 200."""
        with self._progress:
            goal = self.outcomes[200] + num_more
            assert self._progress.wait_for(lambda: self.outcomes[200] >= goal, PATIENCE), self.outcomes

    def wait_until(self, moment: float) -> None:
        """Until a request has ended after this moment of time.monotonic()."""
        with self._progress:
            assert self._progress.wait_for(lambda: time.monotonic() >= moment, PATIENCE), self.outcomes

    def p99(self, since: float, seconds: float) -> float:
        """In seconds, by nearest rank: of what was sent in so many seconds from `since` on and has been answered."""
        found = sorted(took for sent, took in self.answered if since <= sent < since + seconds)
        return found[math.ceil(0.99 * len(found)) - 1]

    def _ask_forever(self, number: int) -> None:
        connection, requests = self.server.connect(), itertools.cycle(requests_of(number))
        for texts, expected in itertools.islice(requests, number % len(REQUESTS), None):
            if self._stop.is_set():
                break
            outcome: int | str
            sent = time.monotonic()
            try:
                outcome = self._ask(connection, texts, expected)
            except (ConnectionError, http.client.HTTPException) as error:
                outcome = type(error).__name__
                connection.close()
                connection = self.server.connect()
            with self._progress:
                self.outcomes[outcome] += 1
                if outcome == 200:
                    self.answered.append((sent, time.monotonic() - sent))
                self._progress.notify_all()
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection, texts: list[str], expected: NDArray[np.float32]) -> int:
        body = {"input": texts, "encoding_format": "bytes"}
        reply = send(connection, "POST", "/v1/embeddings", body, **self.headers)
        if reply.status == 200:
            rows = np.frombuffer(reply.body, "<f4").reshape(-1, DIMENSIONS)
            if not np.array_equal(rows, expected):
                self.wrong.append(f"a request of {len(texts)} texts")
        return reply.status

"""Processes are killed while async requests come in and run: each that was accepted ends once, with its own rows."""

import hashlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path

import numpy as np
import pytest

from tests.server.jobs.served.asking import accepted, result
from tests.server.jobs.served.hooks import Receiver, receiving
from tests.server.jobs.store.redis_server import redis_server
from tests.server_e2e.expected import COMPACT, FAKE, SPREAD, rows_of
from tests.server_e2e.running import PATIENCE, Reply, Server, serving
from tests.tiers import full

SEED = 18
ROLES = ("jobs 0", "frontend 0", "batch manager 0", "engine 0", "tokenizer 0")
CLIENTS = 4


class Clients:
    """Send requests, each until it is accepted, as a client with an idempotency key does."""

    def __init__(self, server: Server, webhook_endpoint: str | None = None) -> None:
        self.server = server
        self._webhook_endpoint = webhook_endpoint
        self.ids: dict[str, str] = {}  # by the text
        self.wrong: list[Reply] = []
        self._news = threading.Condition()
        self._stops = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(CLIENTS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stops.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def wait_for(self, number: int) -> None:
        """Until so many more were accepted."""
        self.wait_until(len(self.ids) + number)

    def wait_until(self, number: int) -> None:
        """Until so many were accepted in all."""
        with self._news:
            while len(self.ids) < number:
                assert self._news.wait(PATIENCE)

    def _send(self, client: int) -> None:
        number = 0
        while not self._stops.is_set():
            number += 1
            self._accepted(f"text {client} {number}")

    def _accepted(self, text: str) -> None:
        body = {
            "model_input": {"input": text, "encoding_format": "bytes"},
            "max_time_in_queue_seconds": 3600,
            "webhook_endpoint": self._webhook_endpoint,
        }
        while not self._stops.is_set():
            try:
                answer = self.server.request("POST", "/async_predict", body, idempotency_key=text.replace(" ", "-"))
            except (OSError, HTTPException):  # its frontend was killed
                continue
            if answer.status == 202:
                with self._news:
                    self.ids[text] = answer.json()["request_id"]
                    self._news.notify_all()
                return
            if answer.status != 503 or "retry-after" not in answer.headers:
                self.wrong.append(answer)


@contextmanager
def sending(server: Server, webhook_endpoint: str | None = None) -> Iterator[Clients]:
    clients = Clients(server, webhook_endpoint)
    clients.start()
    try:
        yield clients
    finally:
        clients.stop()


def assert_all_ended(server: Server, ids: dict[str, str]) -> None:
    """Each with the rows of its own text. Two texts never share a request."""
    assert len(set(ids.values())) == len(ids)
    for (text, request_id), row in zip(ids.items(), rows_of(list(ids)), strict=True):
        answer = result(server, request_id)
        assert answer.status == 200, (text, answer)
        assert np.array_equal(np.frombuffer(answer.body, np.float32), row), text


def assert_all_told(receiver: Receiver, ids: dict[str, str]) -> None:
    """Each has a webhook; if one came twice, both were the same."""
    missing, told = set(ids.values()), dict[str, bytes]()
    while missing:
        got = receiver.received.get(timeout=3 * PATIENCE)  # leases of the store and of the outbox may be waited for
        request_id, digest = got.headers["webhook-id"], hashlib.sha256(got.body).digest()
        assert told.setdefault(request_id, digest) == digest
        missing.discard(request_id)
    assert set(told) == set(ids.values())


def killed_at_random(clients: Clients, num_kills: int, most_between: int) -> None:
    choose, server = random.Random(SEED), clients.server
    titles = [title for title in ROLES if title in server.processes()]  # compact has fewer
    for _ in range(num_kills):
        clients.wait_for(choose.randrange(5, most_between))
        title, seen = choose.choice(titles), len(server.log.lines)
        server.kill(title)
        server.log.wait_for(f"{title} is ready", after=seen)
    clients.wait_for(10)


@pytest.mark.faults
@pytest.mark.parametrize(("topology", "num_kills"), [(SPREAD, 2), *full((SPREAD, 5), (COMPACT, 5))])
@pytest.mark.holds("An accepted async request ends exactly once")
def test_processes_are_killed_at_random(topology: tuple[str, ...], num_kills: int, tmp_path: Path) -> None:
    with serving(*FAKE, *topology, "--jobs", str(tmp_path / "kept"), folder=tmp_path) as server:
        with sending(server) as clients:
            killed_at_random(clients, num_kills, most_between=30)
        assert not clients.wrong
        assert_all_ended(server, clients.ids)


@pytest.mark.faults
@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("store", "num_kills", "num_requests"), [("SQLite", 50, 20_000), ("Redis", 15, 5_000)])
@pytest.mark.holds("An accepted async request ends exactly once", "A webhook is sent until it is received")
def test_nothing_is_lost_or_untold_through_many_kills(
    store: str, num_kills: int, num_requests: int, tmp_path: Path, reached: Callable[[str, str], None]
) -> None:
    with ExitStack() as stack:
        redis = {"EMBEDLINE_JOBS_REDIS": stack.enter_context(redis_server(tmp_path))} if store == "Redis" else None
        flags = (*FAKE, "--jobs", str(tmp_path / "kept"), "--jobs-private-webhooks")
        server = stack.enter_context(serving(*flags, folder=tmp_path, environment=redis))
        receiver = stack.enter_context(receiving())
        with sending(server, receiver.url) as clients:
            killed_at_random(clients, num_kills, most_between=2 * num_requests // num_kills)
            clients.wait_until(num_requests)
        assert not clients.wrong
        assert_all_told(receiver, clients.ids)
        assert_all_ended(server, clients.ids)
    reached("async requests", f"{store}, {num_kills} kills: 0 of {len(clients.ids):,} lost, wrong or without a webhook")


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
@pytest.mark.holds("An accepted async request ends exactly once")
def test_a_server_that_ended_leaves_its_queue_to_the_next(is_killed: bool, tmp_path: Path) -> None:
    flags = (*FAKE, "--jobs", str(tmp_path / "kept"))
    with serving(*flags, "--fake-cost-ms", "20", folder=tmp_path) as first, sending(first) as clients:
        clients.wait_for(50)
        if is_killed:
            first.process.kill()
        assert first.stop() == (-signal.SIGKILL if is_killed else 0)
    with serving(*flags, folder=tmp_path) as second:
        assert_all_ended(second, clients.ids)


@pytest.mark.full  # tests/server/jobs/test_folder.py has the refusal
def test_a_second_server_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    flags = (*FAKE, "--jobs", str(tmp_path / "kept"))
    with serving(*flags, folder=tmp_path):
        second = Server(*flags, folder=tmp_path)
        try:
            second.log.wait_for("--jobs: another server uses this folder")
            assert second.process.wait(PATIENCE) == 2
        finally:
            second.close()


@pytest.mark.full
def test_others_are_served_while_the_jobs_process_hangs_and_it_is_replaced(tmp_path: Path) -> None:
    flags = (*FAKE, "--heartbeat-timeout", "2", "--jobs", str(tmp_path / "kept"))
    with serving(*flags, folder=tmp_path) as server:
        kept, seen = accepted(server, {"input": "hello"}), len(server.log.lines)
        os.kill(server.processes()["jobs 0"], signal.SIGSTOP)
        assert server.embed("hello").status == 200
        assert server.request("GET", "/readyz").status == 200
        server.log.wait_for("jobs 0 is ready", after=seen)
        assert result(server, kept).status == 200

"""How a whole server ends: by which signals, what open requests get, and what impatience does."""

import contextlib
import http.client
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import PATIENCE, Reply, Server, is_running, serving

POISON = 29_000
HANGS = ("--token-ids", "any", "--fake-fault", f"hang@token:{POISON}", "--frontends", "1")
# curl's words; a socket's path comes behind them
RETRY = ("--retry", "60", "--retry-delay", "1", "--retry-all-errors")
ASK = ("curl", "-fs", *RETRY, "http://localhost/readyz", "--unix-socket")
BODY = b'{"input": [%d]}' % POISON


@contextlib.contextmanager
def open_request(server: Server) -> Iterator[http.client.HTTPConnection]:
    """A request that an engine never answers."""
    with contextlib.closing(server.connect()) as connection:
        connection.request("POST", "/v1/embeddings", BODY)
        both = b'embedline_open_requests{process="frontend 0"} 2.0'  # ours, and the one that asks
        while both not in server.request("GET", "/metrics").body:
            pass
        yield connection


@contextlib.contextmanager
def heard(number: signal.Signals, by: signal.Handlers = signal.SIG_DFL) -> Iterator[None]:
    """How whoever is started meanwhile takes this signal at first."""
    before = signal.signal(number, by)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.full
@pytest.mark.holds("Shutdown")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(closed: str, tmp_path: Path) -> None:
    uds = tmp_path / "s"
    shell = ("bash", "-c", f'exec "$@" {closed}', "bash")
    with contextlib.closing(Server(*FAKE, "--uds", str(uds), folder=tmp_path, wrapper=shell)) as server:
        answer = subprocess.run(
            [*ASK, str(uds)],
            capture_output=True,
            check=False,
        )
        assert answer.stdout == b"ok"
        assert server.stop() == 0


@pytest.mark.full
@pytest.mark.holds("Shutdown")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_other_signals_stop_it_in_order_too(number: signal.Signals, tmp_path: Path) -> None:
    with heard(number):  # the tests may have been started by nohup
        server = Server(*FAKE, folder=tmp_path)
    with contextlib.closing(server):
        server.wait_ready()
        pids = list(server.processes().values())
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == 0
        assert not any(is_running(pid) for pid in pids)
        server.log.wait_for("stopping")


@pytest.mark.full
@pytest.mark.holds("Shutdown")
def test_nohup_keeps_it_from_hearing_of_a_closed_terminal(tmp_path: Path) -> None:
    with heard(signal.SIGHUP, signal.SIG_IGN):  # as nohup does
        server = Server(*FAKE, folder=tmp_path)
    with contextlib.closing(server):
        server.wait_ready()
        server.process.send_signal(signal.SIGHUP)
        server.request("GET", "/metrics")  # the supervisor makes the page, after whatever it was told before
        assert server.request("GET", "/readyz").status == 200
        assert server.embed("still there").status == 200
        assert server.stop() == 0


@pytest.mark.full
@pytest.mark.holds("Shutdown")
def test_what_is_unfinished_at_the_end_gets_503(tmp_path: Path) -> None:
    with serving(*FAKE, *HANGS, "--shutdown-timeout", "0.3", folder=tmp_path) as server:
        with open_request(server) as connection:
            server.process.send_signal(signal.SIGTERM)
            answer = connection.getresponse()
            reply = Reply(answer.status, dict(answer.getheaders()), answer.read())

        assert reply.status == 503
        assert reply.json()["error"]["code"] == "not_ready"
        assert int(reply.headers["retry-after"]) >= 1
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.holds("Shutdown")
def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with serving(*FAKE, *HANGS, "--shutdown-timeout", "3600", folder=tmp_path) as server:
        pids = list(server.processes().values())
        with open_request(server) as connection:
            server.process.send_signal(signal.SIGTERM)
            server.log.wait_for("stopping")
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                connection.getresponse()
        assert server.process.wait(PATIENCE) == 0
        assert not any(is_running(pid) for pid in pids)


def _is_being_converted(compiled: Path) -> bool:
    """Whether a model is being written into the cache. An empty new folder only shows whether there can be one, and may
    go away while it is listed."""
    try:
        return any(compiled.glob(".new-*/*"))
    except FileNotFoundError:
        return False


@pytest.mark.full
@pytest.mark.holds("Engines on a CPU")
def test_a_start_that_is_ended_at_once_leaves_no_half_converted_model(tmp_path: Path) -> None:
    compiled = tmp_path / "cache" / "compiled"
    server = Server("--engine", "openvino", "--compiled-cache", str(tmp_path / "cache"), folder=tmp_path)
    with contextlib.closing(server):
        while not _is_being_converted(compiled):
            assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        server.log.wait_for("stopping")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
    assert not any(compiled.glob(".*"))

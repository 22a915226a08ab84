"""A feature is a folder and an entry in the list: one that is planted so has all that the server's own have."""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import Server, serving
from tests.structure.sources import PACKAGES, ROOT

PLANTED = Path(__file__).parent / "echo"
KEY = {"authorization": "Bearer sesame"}
ENTRY = "from server.features.echo.feature import ECHO\n\nFEATURES = (*FEATURES, ECHO)\n"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program, with a folder and an entry more."""
    root = tmp_path_factory.mktemp("house")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(PLANTED, root / "server/features/echo", ignore=shutil.ignore_patterns("__pycache__"))
    with (root / "server/features/table.py").open("a") as table:
        table.write(ENTRY)
    return root


@pytest.fixture
def server(house: Path, tmp_path: Path) -> Iterator[Server]:
    flags = (*FAKE, "--frontends", "1", "--echo", "hello")
    environment = {"PYTHONPATH": str(house), "API_KEY": "sesame"}
    with serving(*flags, folder=tmp_path, environment=environment) as started:
        yield started


@pytest.mark.full
def test_a_planted_feature_has_its_process_flag_route_metric_and_secret(server: Server) -> None:
    assert server.request("GET", "/echo").status == 401
    echoed = server.request("GET", "/echo", **KEY)
    # the process asked this server for /info meanwhile, for the owner of the request's key
    assert (echoed.status, echoed.body) == (200, b"hello 200")
    assert server.request("GET", "/info", **{"x-echo": "guessed key-1"}).status == 401
    paths = server.request("GET", "/openapi.json", **KEY).json()["paths"]
    assert paths["/echo"]["get"]["summary"] == "The word of --echo"
    metrics, began = "", time.monotonic()
    while not re.search(r"^embedline_echoes_total 1\.0$", metrics, re.MULTILINE):  # it comes with a heartbeat
        assert time.monotonic() < began + 60
        metrics = server.request("GET", "/metrics").body.decode()
    assert 'embedline_process_restarts_total{role="echo"} 0.0' in metrics


@pytest.mark.full
def test_the_server_is_ready_with_it_alone_and_starts_it_again(server: Server) -> None:
    seen = len(server.log.lines)
    server.kill("echo 0")
    _, seen = server.log.wait_for(r"not ready: no echo is ready", after=seen)
    server.wait_ready(after=seen)
    assert server.request("GET", "/echo", **KEY).body == b"hello 200"
    assert 'embedline_process_restarts_total{role="echo"} 1.0' in server.request("GET", "/metrics").body.decode()


@pytest.mark.full
def test_it_is_told_of_the_drain_and_ends_in_order(server: Server) -> None:
    assert server.stop() == 0
    lines = [line.partition("echo: ")[2] for line in server.log.lines if "echo: " in line]
    lines.remove("the server drains")  # said by its process
    assert lines == ["starts", "stops", "stops last", "closes"]

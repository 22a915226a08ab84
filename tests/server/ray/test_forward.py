"""Requests that come through Serve's own proxy reach a server as they are. Runs with Ray's Python, with no cluster."""

import json
import subprocess
from typing import Any

import pytest

from tests.server.ray.cluster import python_with_ray
from tests.server_e2e.running import PATIENCE, ROOT

pytestmark = pytest.mark.ray


def forwarded(method: str, path: str, query: str = "", **asked: Any) -> Any:
    """What a server got."""
    given = {"method": method, "path": path, "query": query, "headers": [], "body": [], **asked}
    done = subprocess.run(
        [python_with_ray(), "-m", "tests.server.ray.forward_one"],
        input=json.dumps(given),
        capture_output=True,
        cwd=ROOT,
        text=True,
        timeout=PATIENCE,
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def test_the_target_is_as_the_client_wrote_it() -> None:
    assert forwarded("GET", "/files/a%2Fb/%7Ex/../y//z", "q=%41+%2B&r=a'b")["line"] == (
        "GET /files/a%2Fb/%7Ex/../y//z?q=%41+%2B&r=a'b HTTP/1.1"
    )


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_body_goes_with_its_length(method: str) -> None:
    got = forwarded(method, "/embed", headers=[["Content-Length", "4"]], body=["te", "xt"])
    assert got["body"] == "text"


def test_a_request_without_a_body_announces_none() -> None:
    assert not {"content-length", "transfer-encoding"} & {
        name.lower() for name, _ in forwarded("GET", "/readyz")["headers"]
    }

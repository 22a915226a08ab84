"""The OpenAPI page is true: schemathesis sends what it allows and what it forbids, and checks every answer against it.

schemathesis has an environment of its own, which tests/clients/schemathesis/requirements.txt describes.
"""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from server.http.http_server import HttpServer
from server.settings.api_keys import ApiKey, digest
from tests.server.edge import Edge, state_with_everything
from tests.server_e2e.running import ROOT

pytestmark = [pytest.mark.clients, pytest.mark.full, pytest.mark.timeout(900)]

HERE = Path(__file__).parent / "schemathesis"
PROGRAM = Path(os.environ.get("EMBEDLINE_CLIENTS", ROOT / ".clients")) / "schemathesis/bin/schemathesis"
EXAMPLES = os.environ.get("EMBEDLINE_EXAMPLES", "30")  # for each route


@pytest.mark.holds("Every route is on the OpenAPI page as it is")
@pytest.mark.parametrize("keys", [[], [ApiKey("team", digest(b"sesame"))]], ids=["no keys", "keys"])
def test_every_answer_is_as_the_page_says(keys: list[ApiKey], tmp_path: Path) -> None:
    if not PROGRAM.exists():
        pytest.skip(f"no {PROGRAM} (make .clients/schemathesis/.made)")

    async def run() -> tuple[int | None, str]:
        edge = Edge(loaded=state_with_everything(), max_bytes=1 << 20, max_requests=100, keys=keys)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = HttpServer(edge.app, [listener])
            await server.start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/openapi.json"
            process = await asyncio.create_subprocess_exec(
                str(PROGRAM),
                *("--config-file", str(HERE / "schemathesis.toml"), "run", url, "--no-color", "--seed", "1"),
                *("--max-examples", EXAMPLES, "--header", "x-api-key: sesame", "--generation-database", "none"),
                cwd=tmp_path,
                env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE)},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            said, _ = await process.communicate()
            await server.stop(0)
            return process.returncode, said.decode()

    code, said = asyncio.run(run())
    assert code == 0, said

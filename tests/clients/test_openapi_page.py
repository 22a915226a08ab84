"""The OpenAPI page is true: schemathesis sends what it allows and what it forbids, and checks every answer against it.

schemathesis has an environment of its own, which tests/clients/schemathesis/requirements.txt describes. Its bodies come
from the page and a seed alone. tests/server/http/routes/test_page_is_true.py has a body for each rule of the page.
"""

import asyncio
import os
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import uvloop

from server.http.server import HttpServer
from server.settings.api_keys import ApiKey, digest
from tests.server.edge import Edge, state_with_everything
from tests.server_e2e.running import ROOT

pytestmark = [pytest.mark.clients, pytest.mark.full, pytest.mark.timeout(3600)]

HERE = Path(__file__).parent / "schemathesis"
PROGRAM = Path(os.environ.get("EMBEDLINE_CLIENTS", ROOT / ".clients")) / "schemathesis/bin/schemathesis"
VOCAB_SIZE = 30_522  # that of the stand-in for tokenizers
_NUM_CASES = re.compile(r"(\d+) generated")


def run_schemathesis(folder: Path, flags: Sequence[str], *, keys: Sequence[ApiKey] = ()) -> str:
    """What it says in the end; fails with all that it says if it found something."""
    if not PROGRAM.exists():
        pytest.skip(f"no {PROGRAM} (make .clients/schemathesis/.made)")
    loaded = state_with_everything()
    loaded["models"][0]["info"]["vocab_size"] = VOCAB_SIZE

    async def run() -> tuple[int | None, str]:
        edge = Edge(loaded=loaded, max_bytes=1 << 20, max_requests=100, keys=keys)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = HttpServer(edge.app, [listener])
            await server.start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/openapi.json"
            process = await asyncio.create_subprocess_exec(
                str(PROGRAM),
                *("--config-file", str(HERE / "schemathesis.toml"), "run", url, "--no-color"),
                *("--header", "x-api-key: sesame", "--output-sanitize", "false"),
                *flags,
                cwd=folder,
                env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE)},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            said, _ = await process.communicate()
            await server.stop(0)
            return process.returncode, said.decode()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the loop that frontends have
        code, said = runner.run(run())
    assert code == 0, said
    return said


@pytest.mark.holds("Every route is on the OpenAPI page as it is")
def test_every_rule_of_the_page_is_kept_and_broken(tmp_path: Path, reached: Callable[[str, str], None]) -> None:
    """Each limit, word, type and required field of each body by itself, and random bodies; the same in every run."""
    said = run_schemathesis(tmp_path, ("--generation-deterministic", "--max-examples", "5"))
    (num_cases,) = _NUM_CASES.findall(said)
    reached("R13", f"0 of {num_cases} cases failed")


@pytest.mark.holds("Every route is on the OpenAPI page as it is")
def test_keys_are_asked_for_where_the_page_says_so(tmp_path: Path) -> None:
    flags = ("--phases", "examples,fuzzing,stateful", "--generation-deterministic", "--max-examples", "10")
    run_schemathesis(tmp_path, flags, keys=[ApiKey("team", digest(b"sesame"))])


@pytest.mark.nightly
@pytest.mark.holds("Every route is on the OpenAPI page as it is")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_more_random_bodies(seed: int, tmp_path: Path, reached: Callable[[str, str], None]) -> None:
    said = run_schemathesis(tmp_path, ("--seed", str(seed), "--generation-database", "none", "--max-examples", "100"))
    (num_cases,) = _NUM_CASES.findall(said)
    reached("R13", f"0 of {num_cases} cases failed with seed {seed}")

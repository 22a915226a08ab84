"""The README's examples, run as they stand against a server with the real model, print what the README says.

Its port is the only thing that is replaced.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT, Example, examples, flags_in, known_flags
from tests.server_e2e.running import PATIENCE, Server, serving

README = (ROOT / "README.md").read_text()
ADDRESS = "localhost:8080"
RUN = [example for example in examples(README) if example.language in ("bash", "python")]


def name_of(example: Example) -> str:
    """The client that an example is for."""
    imported = re.search(r"^from (\w+)", example.code, re.MULTILINE)
    return imported[1] if imported else "numpy" if example.language == "python" else "curl"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(folder=tmp_path_factory.mktemp("readme")) as running:
        yield running


def command(example: Example, server: Server) -> list[str]:
    code = example.code.replace(ADDRESS, f"localhost:{server.port}")
    if example.language == "python":
        return [sys.executable, "-c", code]
    return ["bash", "-euo", "pipefail", "-c", code]


def is_as_said(printed: str, said: str) -> bool:
    """Whether the two are equal, where "…" stands for anything within a line."""
    pattern = "[^\n]*".join(map(re.escape, said.strip().split("…")))
    return re.fullmatch(pattern, printed.strip()) is not None


@pytest.mark.slow
@pytest.mark.clients
@pytest.mark.parametrize("example", RUN, ids=name_of)
def test_an_example_prints_what_the_readme_says(example: Example, server: Server, tmp_path: Path) -> None:
    if example.language == "bash":
        for program in ("bash", "curl"):
            if shutil.which(program) is None:
                pytest.skip(f"{program} is not installed")

    ended = subprocess.run(
        command(example, server),
        cwd=tmp_path,
        env={**os.environ, "no_proxy": "localhost", "NO_PROXY": "localhost"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert example.output is not None
    assert is_as_said(ended.stdout, example.output), ended.stdout


def test_the_readme_shows_every_kind_of_client() -> None:
    assert {name_of(example) for example in RUN} == {"curl", "openai", "numpy", "baseten_performance_client"}


def test_every_example_that_is_run_asks_this_server_and_says_what_it_prints() -> None:
    for example in RUN:
        assert f"http://{ADDRESS}" in example.code
        assert set(re.findall(r"http://([^/\"]+)", example.code)) == {ADDRESS}
        assert example.output is not None


def test_flags_that_the_readme_names_exist() -> None:
    assert flags_in(README) <= known_flags()


@pytest.mark.parametrize(
    ("printed", "said", "expected"),
    [
        ("ok", "ok\n", True),
        ("[0.0482]\n", "[0.048…]", True),
        ("[0.0982]", "[0.048…]", False),
        ("a\nb", "a…", False),
        ("axb", "a.b", False),
        ("", "ok", False),
    ],
)
def test_how_output_is_compared(printed: str, said: str, expected: bool) -> None:
    assert is_as_said(printed, said) is expected

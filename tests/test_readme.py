"""The examples of the README, of pages on clients and pipelines, and of examples/ print what they say.

Of the pages' only the port is replaced; the files take the server's address from EMBEDLINE_URL.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT, Example, examples, flags_in, known_flags
from tests.server_e2e.running import PATIENCE, Server

README = (ROOT / "README.md").read_text()
ADDRESS = "localhost:8080"
NOBODY = "127.0.0.1:1"  # where no server is
CLIENTS = (ROOT / "docs" / "clients.md").read_text()
CLIENT = (ROOT / "docs" / "client.md").read_text()
PIPELINES = (ROOT / "docs" / "pipelines.md").read_text()
RUN = [example for example in examples(README + CLIENTS + CLIENT + PIPELINES) if example.language in ("bash", "python")]


FILES = sorted(path for path in (ROOT / "examples").iterdir() if path.suffix != ".md")
PROGRAMS = {".py": sys.executable, ".mjs": "node", ".sh": "bash"}
OPTIONAL = {"langchain_client.py": "langchain_openai", "llama_index_client.py": "llama_index"}


def name_of(example: Example) -> str:
    """The client that an example is for."""
    imported = re.search(r"^from (?!numpy)(\w+)", example.code, re.MULTILINE)
    return imported[1] if imported else "numpy" if example.language == "python" else "curl"


@pytest.fixture
def server(real_server: Server) -> Server:
    return real_server


def command(example: Example, server: Server) -> list[str]:
    code = example.code.replace(ADDRESS, f"localhost:{server.port}")
    if example.language == "python":
        return [sys.executable, "-c", code]
    return ["bash", "-euo", "pipefail", "-c", code]


def is_as_said(printed: str, said: str) -> bool:
    """Whether the two are equal, where "…" stands for anything within a line."""
    pattern = "[^\n]*".join(map(re.escape, said.strip().split("…")))
    return re.fullmatch(pattern, printed.strip()) is not None


def output_of(words: list[str], server: Server, folder: Path) -> str:
    """What a program prints that asks this server."""
    url = {"EMBEDLINE_URL": f"http://localhost:{server.port}", "no_proxy": "localhost", "NO_PROXY": "localhost"}
    ended = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **url},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def skip_without(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def said_by(file: Path) -> str:
    """The comment at the end of a file that says what it prints."""
    _, found, lines = re.sub(r"^(#|//) ?", "", file.read_text(), flags=re.MULTILINE).rpartition("\nPrints:\n")
    assert found, file
    return lines


@pytest.mark.clients
@pytest.mark.parametrize("example", RUN, ids=name_of)
def test_an_example_prints_what_its_page_says(example: Example, server: Server, tmp_path: Path) -> None:
    if example.language == "bash":
        skip_without("bash", "curl")

    printed = output_of(command(example, server), server, tmp_path)

    assert example.output is not None
    assert is_as_said(printed, example.output.replace(ADDRESS, f"localhost:{server.port}")), printed


@pytest.mark.clients
@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.name))
def test_a_file_prints_what_it_says(file: Path, server: Server, tmp_path: Path) -> None:
    skip_without(PROGRAMS[file.suffix])
    if file.name in OPTIONAL and importlib.util.find_spec(OPTIONAL[file.name]) is None:
        pytest.skip(f"{OPTIONAL[file.name]} is not installed")

    printed = output_of([PROGRAMS[file.suffix], str(file)], server, tmp_path)

    assert is_as_said(printed, said_by(file)), printed


def test_every_file_is_in_the_table_of_examples() -> None:
    page = (ROOT / "examples" / "README.md").read_text()
    assert sorted(re.findall(r"^\| \[([\w.]+)\]\(\1\)", page, re.MULTILINE)) == [file.name for file in FILES]


def test_the_pages_show_every_kind_of_client() -> None:
    assert {name_of(example) for example in RUN} == {
        "curl",
        "openai",
        "numpy",
        "baseten_performance_client",
        "embedline",
    }


def test_every_example_that_is_run_asks_this_server_and_says_what_it_prints() -> None:
    for example in RUN:
        assert f"http://{ADDRESS}" in example.code
        assert set(re.findall(r"http://([^/\"]+)", example.code)) - {NOBODY} == {ADDRESS}
        assert example.output is not None


def test_flags_that_the_readme_names_exist() -> None:
    assert flags_in(README) <= known_flags()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_headline_is_the_least_and_the_most_of_the_table() -> None:
    """How many times as many texts a second as each other server, in brackets; and the lone query, the other way."""
    (head,) = (line for line in README.splitlines() if line.startswith("| load |"))
    first = 2 + sum(name.startswith("`--") for name in cells(head))  # behind the loads, ours and ours with a flag
    rows = [cells(line) for line in README.splitlines() if line.startswith("| ") and ", texts/s |" in line]
    factors = re.findall(r"\(([\d.]+).\)", " ".join(cell for row in rows for cell in row[first:]))
    (query,) = (cells(line) for line in README.splitlines() if line.startswith("| a single query"))
    millis = [float(re.sub(r" \(.*|\*", "", cell)) for cell in query[1:]]

    least, most = min(factors, key=float), max(factors, key=float)
    slower = millis[0] / min(millis[first - 1 :])
    assert f"[{least} to {most} times as fast](#how-fast)" in README
    assert f"a lone query takes {slower:.1f} times as long as in the fastest" in README


def test_nothing_that_is_served_stands_under_does_not_yet() -> None:
    _, _, table = README.partition("| works | does not yet |")
    missing = [cells(line)[1] for line in table.partition("\n\n")[0].splitlines()[2:]]
    features = [cells(line) for line in (ROOT / "docs/compare.md").read_text().splitlines() if line.startswith("| ")]
    served = {row[0].split()[0].strip(",") for row in features if row[-1].startswith("yes")}

    assert len(missing) > 10
    assert served & {word.strip() for cell in missing for word in re.split("[,;]", cell)} == set()


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

"""What docker/Dockerfile.cpu promises, read off its instructions."""

import re
from pathlib import Path

import pytest

from tests.docker.dockerfile import Stage, parse

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker" / "Dockerfile.cpu"


@pytest.fixture(scope="module")
def stages() -> list[Stage]:
    return parse(FILE)


@pytest.fixture(scope="module")
def image(stages: list[Stage]) -> Stage:
    """The last stage, which is what runs."""
    return stages[-1]


def environment(stage: Stage) -> dict[str, str]:
    return {name: value for line in stage.all("ENV") for name, value in line.assignments().items()}


def test_it_runs_as_nobody_special(image: Stage) -> None:
    """By number: an orchestrator that demands an ordinary user can't look names up."""
    user, _, group = image.last("USER").rest.partition(":")
    assert f"--uid {user} --gid {group}" in " ".join(line.rest for line in image.all("RUN"))


def test_nothing_that_only_builds_is_in_it(stages: list[Stage], image: Stage) -> None:
    """Of the stage before, the environment alone goes into it."""
    assert [line.flags.get("from") for line in image.all("COPY")] == [stages[0].name]
    assert {stage.base for stage in stages} == {"debian:bookworm-slim"}  # the environment's links to Python hold


def test_every_package_of_the_source_is_copied(stages: list[Stage]) -> None:
    copied = {line.rest.split()[0] for line in stages[0].all("COPY")}
    packages = {file.parent.name for file in ROOT.glob("*/__init__.py")}
    assert packages <= copied
    assert all((ROOT / name).exists() for name in copied if "." in name)


def test_the_builder_is_given_what_is_copied_and_no_more(stages: list[Stage]) -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    copied = {name for line in stages[0].all("COPY") for name in line.rest.split()[:-1]}
    assert rules[0] == "*"
    assert {rule.removeprefix("!") for rule in rules if rule.startswith("!")} == copied


def test_torch_is_the_one_that_make_installs(stages: list[Stage]) -> None:
    pin = re.compile(r"torch==[\d.]+")
    (pinned,) = [found for line in stages[0].all("RUN") for found in pin.findall(line.rest)]
    assert pinned in (ROOT / "Makefile").read_text()
    assert "TORCH_INDEX" in {line.rest.partition("=")[0] for line in stages[0].all("ARG")}


def test_an_instruction_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(
        'FROM a AS b\n# said\nRUN one \\\n    && two\nENV A=1 \\\n    B="two words"\nFROM b\nCOPY --from=b x y\n'
    )
    first, last = parse(file)
    assert (first.base, first.name, last.base, last.name) == ("a", "b", "b", "")
    assert first.last("RUN").rest == "one && two"
    assert first.last("ENV").assignments() == {"A": "1", "B": "two words"}
    assert (last.last("COPY").flags, last.last("COPY").rest) == ({"from": "b"}, "x y")

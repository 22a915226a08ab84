"""What docker/Dockerfile.cuda promises, read off its instructions; what it shares with Dockerfile.cpu stays shared."""

import tomllib
from pathlib import Path

import pytest

from tests.docker.dockerfile import Stage, parse
from tests.docker.test_all_dockerfiles import environment

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"


@pytest.fixture(scope="module")
def stages() -> list[Stage]:
    return parse(DOCKER / "Dockerfile.cuda")


@pytest.fixture(scope="module")
def image(stages: list[Stage]) -> Stage:
    """The last stage, which is what runs."""
    return stages[-1]


@pytest.fixture(scope="module")
def cpu_stages() -> list[Stage]:
    return parse(DOCKER / "Dockerfile.cpu")


def arguments(stage: Stage) -> dict[str, str]:
    return {name: value for line in stage.all("ARG") for name, value in line.assignments().items()}


def installed(stage: Stage) -> set[str]:
    """Debian's packages."""
    commands = " && ".join(line.rest for line in stage.all("RUN")).split("&&")
    return {word for command in commands if "apt-get install" in command for word in command.split()}


def test_it_is_built_as_the_other_one(stages: list[Stage], cpu_stages: list[Stage]) -> None:
    """But for the extras: the same source, the same torch, from the same kind of index."""
    extras = [arguments(stage[0]).pop("EXTRAS") for stage in (stages, cpu_stages)]
    assert extras == ["server,cuda,redis", "server,redis"]
    cuda, cpu = ([line for line in stage[0].instructions if line.name != "ARG"] for stage in (stages, cpu_stages))
    assert cuda == cpu
    assert [stage.base for stage in stages] == [stage.base for stage in cpu_stages]


@pytest.mark.parametrize("name", ["USER", "WORKDIR", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT"])
def test_it_runs_as_the_other_one(image: Stage, cpu_stages: list[Stage], name: str) -> None:
    assert image.last(name) == cpu_stages[-1].last(name)


def test_its_environment_is_the_other_ones_and_what_a_gpu_takes(image: Stage, cpu_stages: list[Stage]) -> None:
    mine, theirs = environment(image), environment(cpu_stages[-1])
    assert mine.items() >= theirs.items()
    more = {name: value for name, value in mine.items() if name not in theirs}
    assert more == {
        "EMBEDLINE_DEVICES": "cuda",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "TRITON_CACHE_DIR": "/data/.cache/triton",
    }


def test_the_compiler_is_all_that_it_has_more_of(image: Stage, cpu_stages: list[Stage]) -> None:
    assert installed(image) - installed(cpu_stages[-1]) == {"gcc", "libc6-dev", "python3-dev"}


def test_its_extras_are_those_of_the_package(stages: list[Stage]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(arguments(stages[0])["EXTRAS"].split(",")) <= set(extras)


def test_no_claim_is_made_of_a_gpu() -> None:
    assert "Never run on a GPU" in (DOCKER / "Dockerfile.cuda").read_text()

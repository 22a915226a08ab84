"""What docker/Dockerfile.tensorrt-llm promises, read off its instructions: two Pythons that share nothing."""

import re
import tomllib
from pathlib import Path

import pytest

from engine import registry
from tests.docker.dockerfile import Stage, parse
from tests.docker.test_all_dockerfiles import environment

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
ENGINES_LIBRARIES = {"torch", "transformers", "openvino", "safetensors", "triton"}


@pytest.fixture(scope="module")
def stages() -> list[Stage]:
    return parse(DOCKER / "Dockerfile.tensorrt-llm")


@pytest.fixture(scope="module")
def image(stages: list[Stage]) -> Stage:
    """The last stage, which is what runs."""
    return stages[-1]


@pytest.fixture(scope="module")
def cuda() -> Stage:
    return parse(DOCKER / "Dockerfile.cuda")[-1]


def commands(stages: list[Stage]) -> str:
    return "\n".join(line.rest for stage in stages for line in stage.all("RUN"))


def test_both_stages_are_nvidias_release(stages: list[Stage]) -> None:
    """One Python made the environment and runs it."""
    bases = {stage.base for stage in stages}
    assert len(bases) == 1
    assert re.fullmatch(r"nvcr\.io/nvidia/tensorrt-llm/release:1\.4\.0rc\d+", bases.pop())


def test_the_images_entry_comes_first(image: Stage) -> None:
    """It sets the paths to CUDA's libraries, and becomes what stands after it."""
    entry = image.last("ENTRYPOINT").words()
    assert entry == ["/opt/nvidia/nvidia_entrypoint.sh", "embedline", "serve", "--hostname", "0.0.0.0"]


def test_the_environment_sees_nothing_of_the_images_packages(stages: list[Stage]) -> None:
    assert "--system-site-packages" not in commands(stages)
    assert "--without-pip" in commands(stages)
    installs = re.findall(r"pip (\S+ \S+) (?:install|wheel)", commands(stages))
    assert installs == ["--python /opt/embedline/bin/python"] * 2
    assert environment(stages[0])["PIP_CONSTRAINT"] == ""


def test_nothing_is_installed_for_the_images_python(image: Stage) -> None:
    assert not re.search(r"\bpip\b|apt-get", commands([image]))


def test_python3_stays_the_images(image: Stage) -> None:
    assert "PATH" not in environment(image)
    assert "/opt/embedline/bin/embedline /usr/local/bin/embedline" in commands([image])
    assert environment(image)["EMBEDLINE_ENGINE_PYTHON"] == "/usr/bin/python3"


def test_it_serves_by_tensorrt_llm_on_gpus(image: Stage) -> None:
    found = environment(image)
    assert (found["EMBEDLINE_ENGINE"], found["EMBEDLINE_DEVICES"]) == ("tensorrt-llm", "cuda")
    assert registry.choose(found["EMBEDLINE_ENGINE"], kind=registry.CUDA)[0] == "tensorrt-llm"


def test_what_it_installs_has_no_engines_library() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in extras["frontend"]}
    assert not names & ENGINES_LIBRARIES


def test_the_frontend_extra_is_what_is_installed(stages: list[Stage]) -> None:
    assert [line.rest for line in stages[0].all("ARG")] == ["EXTRAS=frontend,redis"]


@pytest.mark.parametrize("name", ["USER", "WORKDIR", "VOLUME", "EXPOSE", "HEALTHCHECK"])
def test_it_runs_as_the_other_ones(image: Stage, cuda: Stage, name: str) -> None:
    assert image.last(name) == cuda.last(name)


def test_its_environment_is_the_cuda_images_and_what_tensorrt_llm_takes(image: Stage, cuda: Stage) -> None:
    mine, theirs = environment(image), environment(cuda)
    theirs.pop("PATH")
    assert mine.items() >= theirs.items()
    assert mine.keys() - theirs.keys() == {
        "HOME",
        "EMBEDLINE_ENGINE",
        "EMBEDLINE_ENGINE_PYTHON",
        "FLASHINFER_WORKSPACE_BASE",
        "TRTLLM_DG_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "CUDA_CACHE_PATH",
        "TRTLLM_NO_USAGE_STATS",
    }


def test_no_claim_is_made_of_a_gpu() -> None:
    head = (DOCKER / "Dockerfile.tensorrt-llm").read_text().partition("FROM")[0]
    assert "Never built on that image, never run on a GPU" in " ".join(head.split())

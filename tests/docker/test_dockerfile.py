"""What each Dockerfile promises, read off its instructions; what the images share stays shared."""

import re
import tomllib
from pathlib import Path

import pytest

from engine import registry
from tests.docker.dockerfile import Stage, parse

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
CPU, CUDA, TENSORRT_LLM = (parse(DOCKER / f"Dockerfile.{name}") for name in ("cpu", "cuda", "tensorrt-llm"))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
ENGINES_LIBRARIES = {"torch", "transformers", "openvino", "safetensors", "triton"}


def commands(*stages: Stage) -> str:
    return "\n".join(line.rest for stage in stages for line in stage.all("RUN"))


def test_it_runs_as_nobody_special() -> None:
    """By number: an orchestrator that demands an ordinary user can't look names up."""
    user, _, group = CPU[-1].last("USER").rest.partition(":")
    assert f"--uid {user} --gid {group}" in commands(CPU[-1])


def test_nothing_that_only_builds_is_in_it() -> None:
    """Of the stage before, the environment alone goes into it."""
    assert [line.flags.get("from") for line in CPU[-1].all("COPY")] == [CPU[0].name]
    assert {stage.base for stage in CPU} == {"debian:bookworm-slim"}  # the environment's links to Python hold


def test_every_package_of_the_source_is_copied_and_the_builder_is_given_no_more() -> None:
    copied = {name for line in CPU[0].all("COPY") for name in line.rest.split()[:-1]}
    assert {file.parent.name for file in ROOT.glob("*/__init__.py")} <= copied
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule.removeprefix("!") for rule in rules if rule.startswith("!")} == copied


def test_torch_is_the_one_that_make_installs() -> None:
    (pinned,) = re.findall(r"torch==[\d.]+", commands(CPU[0]))
    assert pinned in (ROOT / "Makefile").read_text()
    assert "TORCH_INDEX" in {line.rest.partition("=")[0] for line in CPU[0].all("ARG")}


def test_torch_comes_from_the_index_that_is_named_with_each_extra_that_brings_it() -> None:
    bring_torch = {name for name, needs in EXTRAS.items() if "embedline[server]" in needs} - {"bench", "test"}
    assert bring_torch, "some do"
    assert {"server", *bring_torch} == set(re.findall(r"\*,(\w+),\*", commands(CPU[0])))


def test_the_cuda_image_is_built_as_the_cpus() -> None:
    """But for the extras: the same source, the same torch, from the same kind of index."""
    cuda, cpu = ([line for line in stages[0].instructions if line.name != "ARG"] for stages in (CUDA, CPU))
    assert cuda == cpu
    assert [stage.base for stage in CUDA] == [stage.base for stage in CPU]


@pytest.mark.parametrize(
    ("stages", "extras"),
    [(CPU, "cpu,redis"), (CUDA, "server,cuda,redis"), (TENSORRT_LLM, "frontend,redis")],
    ids=["cpu", "cuda", "tensorrt-llm"],
)
def test_its_extras_are_those_of_the_package(stages: list[Stage], extras: str) -> None:
    assert stages[0].assigned("ARG")["EXTRAS"] == extras
    assert set(extras.split(",")) <= set(EXTRAS)


@pytest.mark.parametrize("name", ["USER", "WORKDIR", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT"])
def test_each_runs_as_the_others(name: str) -> None:
    assert CUDA[-1].last(name) == CPU[-1].last(name)
    if name != "ENTRYPOINT":
        assert TENSORRT_LLM[-1].last(name) == CPU[-1].last(name)


def test_the_cuda_images_environment_is_the_cpus_and_what_a_gpu_takes() -> None:
    mine, theirs = CUDA[-1].assigned("ENV"), CPU[-1].assigned("ENV")
    assert mine.items() >= theirs.items()
    assert dict(mine.items() - theirs.items()) == {
        "EMBEDLINE_DEVICES": "cuda",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "TRITON_CACHE_DIR": "/data/.cache/triton",
    }


def test_the_compiler_is_all_that_the_cuda_image_has_more_of() -> None:
    cuda, cpu = (
        {word for each in commands(stages[-1]).split("&&") if "apt-get install" in each for word in each.split()}
        for stages in (CUDA, CPU)
    )
    assert cuda - cpu == {"gcc", "libc6-dev", "python3-dev"}


@pytest.mark.parametrize(
    ("name", "words"),
    [("cuda", "Never run on a GPU"), ("tensorrt-llm", "Never built on that image, never run on a GPU")],
)
def test_no_claim_is_made_of_a_gpu(name: str, words: str) -> None:
    head = (DOCKER / f"Dockerfile.{name}").read_text().partition("FROM")[0]
    assert words in " ".join(head.replace("#", "").split())


def test_both_stages_of_tensorrt_llm_are_nvidias_release() -> None:
    """One Python made the environment and runs it."""
    (base,) = {stage.base for stage in TENSORRT_LLM}
    assert re.fullmatch(r"nvcr\.io/nvidia/tensorrt-llm/release:1\.4\.0rc\d+", base)


def test_nvidias_entry_comes_first() -> None:
    """It sets the paths to CUDA's libraries, and becomes what stands after it."""
    entry = TENSORRT_LLM[-1].last("ENTRYPOINT").words()
    assert entry == ["/opt/nvidia/nvidia_entrypoint.sh", "embedline", "serve", "--hostname", "0.0.0.0"]


def test_the_environment_and_nvidias_packages_share_nothing() -> None:
    said, last = commands(*TENSORRT_LLM), commands(TENSORRT_LLM[-1])
    assert "--system-site-packages" not in said
    assert "--without-pip" in said
    installs = re.findall(r"pip (\S+ \S+) (?:install|wheel)", said)
    assert installs == ["--python /opt/embedline/bin/python"] * 2
    assert TENSORRT_LLM[0].assigned("ENV")["PIP_CONSTRAINT"] == ""
    assert [line.rest for line in TENSORRT_LLM[0].all("ARG")] == ["EXTRAS=frontend,redis"]
    assert not re.search(r"\bpip\b|apt-get", last)
    assert "/opt/embedline/bin/embedline /usr/local/bin/embedline" in last
    names = {re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in EXTRAS["frontend"]}
    assert not names & ENGINES_LIBRARIES


def test_it_serves_by_tensorrt_llm_on_gpus_with_nvidias_python() -> None:
    mine, theirs = TENSORRT_LLM[-1].assigned("ENV"), CUDA[-1].assigned("ENV")
    assert (mine["EMBEDLINE_ENGINE"], mine["EMBEDLINE_DEVICES"]) == ("tensorrt-llm", "cuda")
    assert registry.choose(mine["EMBEDLINE_ENGINE"], kind=registry.CUDA)[0] == "tensorrt-llm"
    assert mine["EMBEDLINE_ENGINE_PYTHON"] == "/usr/bin/python3"
    assert "PATH" not in mine
    theirs.pop("PATH")
    assert mine.items() >= theirs.items()
    assert mine.keys() - theirs.keys() == {
        *("HOME", "EMBEDLINE_ENGINE", "EMBEDLINE_ENGINE_PYTHON", "FLASHINFER_WORKSPACE_BASE", "TRTLLM_DG_CACHE_DIR"),
        *("TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "TRTLLM_NO_USAGE_STATS"),
    }


def test_an_instruction_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(
        'FROM a AS b\n# said\nRUN one \\\n    && two\nENV A=1 \\\n    B="two words"\nFROM b\nCOPY --from=b x y\n'
    )
    first, last = parse(file)
    assert (first.base, first.name, last.base, last.name) == ("a", "b", "b", "")
    assert first.last("RUN").rest == "one && two"
    assert first.assigned("ENV") == {"A": "1", "B": "two words"}
    assert (last.last("COPY").flags, last.last("COPY").rest) == ({"from": "b"}, "x y")

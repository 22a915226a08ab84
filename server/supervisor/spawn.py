"""Starts the interpreters of child processes, and that of the first engine before it is known what the engine will do.

An engine's process imports for a third of a second before it reads what to do from its control channel, and the
supervisor needs about as long to import its own modules and to plan. So that this is done at the same time, little is
imported here.
"""

import os
import resource
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from engine import registry
from server.settings.settings import Settings

APP_ROOT = Path(__file__).resolve().parents[2]  # the folder that has server/, engine/, …
ENGINE = "engine.worker"
# Defaults that the environment may overrule. numpy computes on the calling thread alone: with a team of threads for
# each product, two engine threads that compute at the same time take three and a half times as long.
# A process that dies before it can ask for its stack, while it imports a library say, shows it too.
_DEFAULTS = {"OPENBLAS_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
_ALWAYS = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_TELEMETRY": "1"}
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # on Linux, and on Linux inside of Windows


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process that waits for START, and our end of its control channel."""

    process: subprocess.Popen[bytes]
    channel: socket.socket

    def end(self) -> None:
        """Kill the process, and return when nothing is left of it."""
        self.process.kill()
        self.process.wait()
        self.channel.close()


def raise_open_files() -> None:
    """Take all that this user may have; processes started from now on have it too."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def spawn(python: str, module: str, fds: tuple[int, ...], *words: str) -> Spawned:
    """Start an interpreter with a module, which inherits `fds` and gets more `words`. Raises OSError."""
    ours, theirs = socket.socketpair()
    path = [str(APP_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with theirs:
        try:
            process = subprocess.Popen(
                # -P: never import from the working folder, which may have an `engine/` of its own
                [python, "-P", "-m", module, str(theirs.fileno()), str(os.getpid()), *words],
                env={**_DEFAULTS, **os.environ, "PYTHONPATH": os.pathsep.join(path), **_ALWAYS},
                pass_fds=(theirs.fileno(), *fds),
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is the supervisor's business, also before the child ignores it
            )
        except BaseException:
            ours.close()
            raise
    return Spawned(process, ours)


class EarlyEngine:
    """The process of the first engine while nobody knows yet what it will do. It imports OpenVINO meanwhile.

    listener  the socket that it inherits, which is bound later; None where it was not started or was taken
    is_taken  whether it has become an engine's process
    """

    def __init__(self) -> None:
        """Starts nothing."""
        self.listener: socket.socket | None = None
        self.is_taken = False
        self._spawned: Spawned | None = None

    def start(self, settings: Settings) -> None:
        """Start it, where OpenVINO will most likely serve the first model. What the system refuses is seen later, when
        the engine is started as any other."""
        model = settings.models[0]
        may_be_openvino = model.engine in (registry.AUTO, registry.OPENVINO) and model.quantization != "fp8"
        has_no_gpu = model.devices == registry.AUTO and not any(map(os.path.exists, _GPU_DRIVERS))
        is_ours = settings.engine_python == sys.executable  # another one is looked at first
        if not (may_be_openvino and is_ours and (model.devices == registry.CPU or has_no_gpu)):
            return
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._spawned = spawn(sys.executable, ENGINE, (listener.fileno(),), registry.OPENVINO)
            self.listener = listener
        except OSError:
            listener.close()

    def take(self) -> tuple[socket.socket, Spawned] | None:
        """The socket and the process, which are the caller's from now on; None where there are none."""
        listener, self.listener = self.listener, None
        self.is_taken = listener is not None
        return None if listener is None or self._spawned is None else (listener, self._spawned)

    def kill(self) -> None:
        """Kill it without waiting for its end: a signal may come while `end` waits."""
        if self._spawned is not None:
            self._spawned.process.kill()

    def end(self) -> None:
        """End it, also where it was taken, unless whoever took it has seen its end."""
        if self._spawned is not None and self._spawned.process.returncode is None:
            self._spawned.end()
        if self.listener is not None:
            self.listener.close()

"""What the card is, and what it says of itself while it works, through nvidia-smi; nothing where there is none."""

import atexit
import collections
import contextlib
import os
import platform
import shutil
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass

import torch

_ASKED = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
_EVERY_MS = 100
_MAX_SAID = 1000  # lines that are kept


@dataclass(frozen=True, slots=True)
class Load:
    """Medians over a stretch of work."""

    sm_mhz: float
    memory_mhz: float
    watts: float
    celsius: float

    def __str__(self) -> str:
        return f"SM {self.sm_mhz:.0f} MHz, memory {self.memory_mhz:.0f} MHz, {self.watts:.0f} W, {self.celsius:.0f} C"


class Watch:
    """What the card says of itself while this process lives: to start nvidia-smi for each figure takes too long."""

    def __init__(self, device: torch.device) -> None:
        self._said: collections.deque[tuple[float, str]] = collections.deque(maxlen=_MAX_SAID)  # and when
        if shutil.which("nvidia-smi") is None:
            return
        command = (
            *("nvidia-smi", f"--id={device.index or 0}", f"--query-gpu={','.join(_ASKED)}"),
            *("--format=csv,noheader,nounits", f"--loop-ms={_EVERY_MS}"),
        )
        lines, terminal = os.openpty()  # what goes to a terminal comes line by line, when it is said
        process = subprocess.Popen(command, stdout=terminal, stderr=subprocess.DEVNULL)
        os.close(terminal)
        atexit.register(process.kill)
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def since(self, began: float) -> Load | None:
        """From this moment of time.perf_counter() on."""
        return parse("".join(line for at, line in list(self._said) if at >= began))

    def _read(self, lines: int) -> None:
        with contextlib.suppress(OSError), open(lines) as opened:  # it ends with an error where the process ends
            for line in opened:
                self._said.append((time.perf_counter(), line))


def parse(lines: str) -> Load | None:
    """Medians of nvidia-smi's lines; None where none is whole (a field may be "[N/A]")."""
    found = [numbers for line in lines.splitlines() if (numbers := _numbers(line)) is not None]
    if not found:
        return None
    return Load(*(statistics.median(column) for column in zip(*found, strict=True)))


def described(device: torch.device) -> str:
    """Card, memory, multiprocessors, driver."""
    if device.type != "cuda":
        return f"CPU, {platform.machine()}"
    card = torch.cuda.get_device_properties(device)
    return (
        f"{card.name}, {card.total_memory / 2**30:.0f} GiB, {card.multi_processor_count} multiprocessors, "
        f"compute capability {card.major}.{card.minor}, driver {_driver()}, CUDA {torch.version.cuda}, "
        f"cuDNN {torch.backends.cudnn.version()}"  # type: ignore[no-untyped-call]
    )


def _numbers(line: str) -> list[float] | None:
    try:
        numbers = [float(field) for field in line.split(",")]
    except ValueError:
        return None
    return numbers if len(numbers) == len(_ASKED) else None


def _driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return "unknown"
    command = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return asked.stdout.split("\n")[0].strip() or "unknown"

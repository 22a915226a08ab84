"""Compiles kernels for GPUs that are not there, through the very calls that launch them; prints what came of each.

    python -m tests.engine.fused.kernels.compile_kernels MODULE ARCH [CASE ...]

MODULE has `CASES`, a sequence of `Case`; without names of some of them all are compiled. ARCH is a compute capability,
one of SHARED_MEMORY. Triton must not interpret, so this is a process of its own. A launch finds a driver here that
compiles and then runs nothing; hence the constants, warps and specialisations are those that the launch chooses, and
the tensors may lie on the CPU.
"""

import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

# Bytes of shared memory that a block can have: the CUDA programming guide's table of compute capabilities.
SHARED_MEMORY = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 103: 232_448, 120: 101_376}
WHOLLY_COMPILED = (80, 89, 90, 100)  # for the others one size of each kernel has to do


@dataclass(frozen=True, slots=True)
class Case:
    """One launch, or several; compiled for `min_arch` and later."""

    name: str
    launch: Callable[[], object]
    min_arch: int = 80


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel of one case."""

    case: str
    arch: int
    kernel: str
    num_registers: int  # a thread
    spilled: int  # bytes a thread: of local memory, which a kernel without arrays of its own has for nothing else
    shared: int  # bytes a block


class CompilingDriver:
    """A CUDA driver's place: what is loaded is looked at, what is launched is not run."""

    def __init__(self, arch: int) -> None:
        self.loaded: list[tuple[str, int, int, int]] = []
        self.utils = self
        self.launcher_cls = NothingLaunched
        self._arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._arch, 32)

    def get_current_device(self) -> int:
        return self._arch  # Triton keeps what it compiled by this number

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_MEMORY[self._arch]}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[str, int, int, int, int]:
        num_registers, spilled = resource_usage(binary)
        self.loaded.append((name, num_registers, spilled, shared))
        return name, 0, num_registers, spilled, 1024


class NothingLaunched:
    """The place of what Triton makes to launch a kernel."""

    def __init__(self, source: object, metadata: object) -> None:
        pass

    def __call__(self, *arguments: Any) -> None:
        pass


def resource_usage(binary: bytes) -> tuple[int, int]:
    """Registers and bytes of local memory a thread, as the tool beside Triton's assembler reads them off."""
    tool = f"{triton.backends.nvidia.__path__[0]}/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    assert found is not None, usage
    registers, stack, local = map(int, found.groups())
    return registers, stack + local


def compiled_apart(folder: Path, module: str, *arguments: str) -> list[dict[str, Any]]:
    """What this module prints of what it compiles in a process of its own, where Triton does not interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=environment | {"TRITON_CACHE_DIR": str(folder)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def compiled(case: Case, arch: int) -> list[Compiled]:
    """What its launches compile."""
    compiling = CompilingDriver(arch)
    driver.set_active(compiling)
    case.launch()
    return [Compiled(case.name, arch, *loaded) for loaded in compiling.loaded]


def main(module: str, arch: int, *names: str) -> None:
    """Print a JSON list of `Compiled`."""
    cases: list[Case] = importlib.import_module(module).CASES
    assert {case.name for case in cases}.issuperset(names)
    asked = [case for case in cases if arch >= case.min_arch and (case.name in names or not names)]
    found = [one for case in asked for one in compiled(case, arch)]
    print(json.dumps([dataclasses.asdict(one) for one in found]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])

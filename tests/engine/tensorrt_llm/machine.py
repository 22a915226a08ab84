"""A machine with an H200 and TensorRT-LLM, as far as a server can tell: stand-ins for the driver and for the library.

The library is in an interpreter of its own, as in the image, so that the server is started with --engine-python.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.engine.machine.test_cuda_driver import driver
from tests.engine.tensorrt_llm.stand_in import FAULTS, place


@dataclass(frozen=True, slots=True)
class Machine:
    """What a server is started with there."""

    flags: tuple[str, ...]
    environment: dict[str, str]


def machine(folder: Path, *faults: str, version: str | None = "1.4.0rc1", num_gpus: int = 1) -> Machine:
    """version: of the library, None = it is not installed. Without a GPU there is a driver that sees none."""
    folder.mkdir()
    shutil.move(driver(folder, count=num_gpus), folder / "libcuda.so.1")
    python = folder / "python"
    path = f':{place(folder, version)}"' if version else '"'
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH{path} exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return Machine(
        ("--engine", "tensorrt-llm", "--engine-python", str(python), "--devices", "cuda:0"),
        {
            "LD_LIBRARY_PATH": str(folder),
            FAULTS: ",".join(faults),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "DTYPE": "auto",
        },
    )

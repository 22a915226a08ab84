"""Folders whose layers are just large enough to have whole blocks, and what was made of them."""

import os
from pathlib import Path
from typing import Any

from transformers import AutoModel

from engine.tensorrt_llm.quantize.job import Done, quantize
from tests.engine.tiny_models import save_whole

# Two blocks by one, one by two and one by one; the heads of keys and values too.
WIDE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "num_key_value_heads": 4, "head_dim": 32}

# The beginning of a program that is killed when some of the tensors have been written.
KILL_AT_A_WRITE = """
import os, signal, sys
real, num_calls = os.pwrite, 0
def pwrite(*arguments):
    global num_calls
    num_calls += 1
    if num_calls == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
os.pwrite = pwrite
"""


def wide(folder: Path, family: str = "qwen3", **others: Any) -> Path:
    """A random model, the same each time."""
    return save_whole(family, folder, AutoModel, **{**WIDE, "num_hidden_layers": 2, **others})


def quantized(folder: Path, out: Path) -> Done:
    """Without a display."""
    return quantize(folder, out, report=lambda num_done, total: None)


def contents(folder: Path) -> dict[str, bytes]:
    """Of all files."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def end_of_processes(cache: Path) -> None:
    """As the kernel does it: what the users of copies hold open is closed."""
    for number in os.listdir("/proc/self/fd"):
        link = Path("/proc/self/fd", number)
        if link.is_symlink() and Path(os.readlink(link)).is_relative_to(cache):
            os.close(int(number))


def copies(cache: str) -> list[str]:
    return sorted(path.name for path in Path(cache, "block-fp8").iterdir() if path.is_dir())

"""How much memory a model of one large file takes, as the kernel counts it for a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from engine.store import tensor_file
from tests.engine.folder_files import write
from tests.structure.sources import ROOT

_MIB = 1 << 20
WIDTH = 2048

# Prints the most that was resident before the work and after it, in kB: pages of mapped files count.
MEASURED = """
import json, sys
from pathlib import Path
from engine.tensorrt_llm.quantize.job import quantize

def peak():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1])

before = peak()
done = quantize(Path(sys.argv[1]), Path(sys.argv[2]), report=lambda num_done, total: None)
print(json.dumps([before, peak(), max(done.errors.values())]))
"""


def measured(folder: Path, num_layers: int, num_embeddings: int) -> tuple[int, int, float]:
    """Of a bfloat16 model with these layers of 2048 by 8192 numbers (32 MiB): peaks in bytes, the largest error."""
    numbers = torch.Generator().manual_seed(0)
    layer = torch.randn(WIDTH, 4 * WIDTH, generator=numbers).bfloat16()
    tensors = {f"layers.{number}.mlp.down_proj.weight": layer for number in range(num_layers)}
    tensors["embed_tokens.weight"] = torch.zeros(num_embeddings, WIDTH, dtype=torch.bfloat16)
    write(folder / "config.json", {"model_type": "qwen3"})
    tensor_file.write(folder / "model.safetensors", tensors)
    command = [sys.executable, "-P", "-c", MEASURED, str(folder), str(folder.parent / "out")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    before, after, error = json.loads(ended.stdout)
    return before * 1024, after * 1024, error


def error_of_last_layer(folder: Path, num_layers: int) -> float:
    """The relative RMS of what the new file of `folder` lost there, as the files are read again."""
    name = f"layers.{num_layers - 1}.mlp.down_proj.weight"
    with safe_open(folder / "model.safetensors", "pt") as plain:
        weight = plain.get_tensor(name).float()
    with safe_open(folder.parent / "out" / "model.safetensors", "pt") as quantized:
        scales = quantized.get_tensor(f"{name}_scale_inv").repeat_interleave(128, 0).repeat_interleave(128, 1)
        read = quantized.get_tensor(name).float().mul_(scales)
    return float((read - weight).norm(dtype=torch.float64) / weight.norm(dtype=torch.float64))


@pytest.mark.full
def test_it_is_that_of_a_strip_and_not_of_a_tensor(tmp_path: Path) -> None:
    before, after, error = measured(tmp_path / "model", num_layers=2, num_embeddings=16 * 1024)
    assert (tmp_path / "model" / "model.safetensors").stat().st_size > 128 * _MIB
    assert after - before < 96 * _MIB
    assert error_of_last_layer(tmp_path / "model", 2) == pytest.approx(error, rel=1e-4)
    assert error < 0.03

"""What the TensorRT-LLM engine can't serve ends the start with one line that says what to do, and exit code 2."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.folder_files import change
from tests.engine.sentence_models import save_words
from tests.engine.tensorrt_llm.machine import Machine, machine
from tests.engine.tensorrt_llm.models import embedding
from tests.engine.tensorrt_llm.quantize.models import WIDE, quantized
from tests.engine.tiny_models import save
from tests.server_e2e.running import PATIENCE, ROOT
from tests.tiers import full


def line_of(here: Machine, model: Path, *flags: str) -> str:
    """What a start says in the end."""
    command = [sys.executable, "-P", "-m", "embedline", "serve", "--port", "0", "--prometheus-port", "0"]
    ended = subprocess.run(
        [*command, *here.flags, "--model-id", str(model), *flags],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **here.environment},
        cwd=model,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedding("qwen3", tmp_path_factory.mktemp("model") / "m", "last").folder


@pytest.mark.holds("TensorRT-LLM")
@pytest.mark.parametrize(
    ("machine_is", "words"),
    [
        ({"version": "1.2.1"}, "tensorrt_llm 1.2.1 is too old: LLM.encode came to the 1.3.0 release candidates"),
        *full(
            (
                {"version": None},
                "the package tensorrt_llm is not installed for this Python; take the tensorrt-llm image",
            ),
            ({"num_gpus": 0}, "--devices cuda:0: the CUDA driver sees no GPU"),
        ),
    ],
)
def test_a_machine_that_is_not_fit(machine_is: dict[str, Any], words: str, model: Path, tmp_path: Path) -> None:
    assert words in line_of(machine(tmp_path / "machine", **machine_is), model, "--pooling", "last-token")


def another_architecture(folder: Path) -> Path:
    found = save("gemma2", folder / "m")
    save_words(found)
    return found


def nobodys_quantization(folder: Path) -> Path:
    found = embedding("qwen3", folder / "m", "last").folder
    change(found / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    return found


def foreign_scales(folder: Path) -> Path:
    """Blocks of another size than upstream has kernels for."""
    plain = embedding("qwen3", folder / "plain", "last", **WIDE).folder
    found = quantized(plain, folder / "m").folder
    blocks = {"quant_method": "fp8", "weight_block_size": [64, 64], "activation_scheme": "dynamic"}
    change(found / "config.json", quantization_config=blocks)
    return found


@pytest.mark.holds("TensorRT-LLM")
@pytest.mark.parametrize(
    ("made", "words"),
    [
        (another_architecture, "has no class for the architecture 'gemma2'"),
        (nobodys_quantization, "gptq"),
        (foreign_scales, "blocks of 128 x 128 alone"),
    ],
)
def test_a_model_that_is_not_fit(made: Callable[[Path], Path], words: str, tmp_path: Path) -> None:
    assert words in line_of(machine(tmp_path / "machine"), made(tmp_path), "--pooling", "last-token")

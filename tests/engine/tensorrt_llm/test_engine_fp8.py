"""Block FP8 from the checkpoint to rows: what was quantized here is read as upstream reads it, with its scales."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from tests.engine.engines import difference
from tests.engine.folder_files import change
from tests.engine.tensorrt_llm.models import FAMILIES, Model, embedding
from tests.engine.tensorrt_llm.parity import SEQLENS, TOLERANCE
from tests.engine.tensorrt_llm.quantize.models import WIDE, end_of_processes, quantized
from tests.engine.tensorrt_llm.stand_in import load, rows
from tests.engine.tiny_models import Reference, arbitrary
from tests.tiers import full_but

pytestmark = pytest.mark.usefixtures("installed")

BLOCK = 128


@pytest.fixture(params=full_but(["qwen3"], FAMILIES))
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    return embedding(request.param, tmp_path / "m", "mean", is_causal=False, **WIDE)


def dequantized(folder: Path, out: Path) -> Reference:
    """transformers on weights that are what the FP8 ones stand for."""
    out.mkdir()
    for file in folder.glob("*.json"):
        (out / file.name).write_bytes(file.read_bytes())
    change(out / "config.json", quantization_config=None)
    tensors = load_file(folder / "model.safetensors")
    plain = {name: tensor for name, tensor in tensors.items() if not name.endswith("_scale_inv")}
    for name in [name for name in tensors if name.endswith("_scale_inv")]:
        weight = name.removesuffix("_scale_inv")
        scales = tensors[name].float().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        plain[weight] = tensors[weight].float() * scales
    save_file(plain, out / "model.safetensors", metadata={"format": "pt"})
    return Reference(out)


def cosine(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    return float(((found * expected).sum(axis=1) / lengths).min())


def test_a_quantized_checkpoint(model: Model, tmp_path: Path) -> None:
    out = quantized(model.folder, tmp_path / "fp8").folder
    engine = load(out, **model.options)
    assert engine.info.dtype == "fp8"
    sequences = arbitrary(SEQLENS)
    found = rows(engine, sequences)
    assert difference(found, dequantized(out, tmp_path / "plain").pooled(sequences, "mean")) <= TOLERANCE
    assert 0.98 < cosine(found, model.expected(sequences)) < 0.99999


def test_quantization_at_the_first_start(model: Model, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    engine = load(model.folder, **model.options, quantization="fp8", cache_dir=str(cache))
    assert engine.info.dtype == "fp8"
    assert any(note.startswith("--quantization fp8: a block-FP8 copy in") for note in engine.info.notes)
    sequences = arbitrary(SEQLENS)
    found = rows(engine, sequences)
    as_by_command = load(quantized(model.folder, tmp_path / "fp8").folder, **model.options)
    assert np.array_equal(found, rows(as_by_command, sequences))
    end_of_processes(cache)

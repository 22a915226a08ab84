"""int8 on the CPU: near enough to float32, each row by itself, and refused where it is not near enough."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.cpu import openvino
from engine.cpu.openvino import import_openvino
from engine.machine import host
from engine.types import ModelError
from tests.engine.cpu.engines import load, pooled
from tests.engine.tiny_models import Reference, arbitrary, save
from tests.tiers import full

SEQLENS = (5, 17, 1, 30, 9, 9, 13)
MULTIPLIES_INT8 = host.multiplies_int8  # the real one; see conftest.py


def cosines(rows: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(expected, axis=1)
    found: NDArray[np.float32] = (rows * expected).sum(axis=1) / lengths
    return found


@pytest.mark.holds("An int8 row does not depend on its neighbours", "Engines on a CPU")
@pytest.mark.parametrize("family", ["bert", *full("gpt2", "albert", "modernbert", "qwen3")])
def test_rows_are_near_those_of_float32_and_do_not_depend_on_neighbours(family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    sequences = arbitrary(SEQLENS)
    loaded = load(folder, quantization="int8", pooling="mean")
    rows = pooled(loaded, sequences)
    alone = np.concatenate([pooled(loaded, [sequence]) for sequence in sequences])
    loaded.close()

    expected = Reference(folder).pooled(sequences, "mean")
    assert 0.97 < cosines(rows, expected).min() < 1 - 1e-7
    # a value on the border between two of 256 steps may fall to either side, as float32 sums round
    assert cosines(rows, alone).min() > 0.9999
    assert loaded.info.dtype == "int8"
    note = loaded.info.notes[0]
    num_products = int(re.findall(r"^int8 in (\d+) matrix products: over 33 English texts the cosine ", note)[0])
    assert num_products == {"bert": 18, "albert": 19, "modernbert": 12, "qwen3": 21, "gpt2": 12}[family]


@pytest.mark.holds("Engines on a CPU")
def test_what_loses_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "_LARGEST", 3)  # four values are left of a weight
    with pytest.raises(ModelError, match=r"^--quantization int8 costs this model too much") as refused:
        load(save("bert", tmp_path / "model"), quantization="int8")
    assert "--quantization none" in str(refused.value)


@pytest.mark.holds("Engines on a CPU")
@pytest.mark.parametrize(
    ("flags", "can"), [("fpu avx2", False), ("avx2 avx_vnni", True), ("avx512f avx512_vnni", True), ("", False)]
)
def test_a_cpu_without_8_bit_products_is_refused(
    flags: str, can: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_cpu_info", lambda: {"flags": flags})
    assert MULTIPLIES_INT8() == can
    monkeypatch.setattr(host, "multiplies_int8", lambda: False)
    with pytest.raises(ModelError, match=r"needs an x86 CPU with avx512_vnni, .* on ARM it was not measured"):
        load(tmp_path, quantization="int8")


@pytest.mark.parametrize("has_outputs_first", [False, True])
def test_each_column_has_a_scale_of_its_own(has_outputs_first: bool) -> None:
    """Weights that two products share stay shared."""
    ov, op = import_openvino(), importlib.import_module("openvino.opset13")
    weights = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    weights *= np.geomspace(1e-3, 1e3, 48, dtype=np.float32)
    weights[:, 7] = 0
    kept = op.constant(weights.T.copy() if has_outputs_first else weights)
    rows = op.parameter([-1, 64], np.float32)
    products = [op.matmul(rows, kept, False, has_outputs_first) for _ in range(2)]
    graph = ov.Model([op.add(*products)], [rows])
    assert openvino.quantize(graph) == 2
    held = [node.data for node in graph.get_ordered_ops() if node.get_type_name() == "Constant"]
    assert [values.size for values in held if values.dtype == np.uint8 and values.size > 48] == [weights.size]

    settings = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}  # the weights alone
    compiled = ov.Core().compile_model(graph, "CPU", settings)
    given = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    found = compiled([given])[0]
    scale = np.linalg.norm(given, axis=1)[:, None] * np.linalg.norm(weights, axis=0)
    assert np.abs(found - 2 * given @ weights).max() > 0
    assert (np.abs(found - 2 * given @ weights) <= 0.01 * scale + 1e-9).all()


def test_a_model_without_products_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "_is_product", lambda _: False)
    with pytest.raises(ModelError) as refused:
        load(save("bert", tmp_path / "model"), quantization="int8")
    assert str(refused.value) == "--quantization int8 finds no matrix products to quantize in this model"


@pytest.mark.full
@pytest.mark.skipif(not MULTIPLIES_INT8(), reason="this CPU would compute with rounded weights alone")
def test_minilm_on_english_texts(minilm_folder: Path) -> None:
    """The figure that is promised, at load and for texts that it was not chosen on."""
    loaded = load(minilm_folder, quantization="int8")
    notes = loaded.info.notes[0].split()
    loaded.close()
    smallest, median = (float(word) for word in notes if word.startswith("0."))
    assert smallest >= 0.99
    assert median >= 0.998

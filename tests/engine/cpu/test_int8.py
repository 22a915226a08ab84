"""int8 on the CPU: near enough to float32, each row by itself, and refused where it is not near enough."""

import platform
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine.cpu.executors import int8
from engine.cpu.executors.onnxruntime import import_onnxruntime
from engine.machine import host
from engine.types import ModelError
from tests.engine.cpu.engines import difference, load, pooled
from tests.engine.tiny_models import Reference, arbitrary, save
from tests.tiers import full

SEQLENS = (5, 17, 1, 30, 9, 9, 13)


def cosines(rows: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(expected, axis=1)
    found: NDArray[np.float32] = (rows * expected).sum(axis=1) / lengths
    return found


@pytest.mark.holds("An int8 row does not depend on its neighbours", "Engines on a CPU")
@pytest.mark.parametrize("family", ["bert", "gpt2", *full("albert", "modernbert", "qwen3")])
def test_rows_are_near_those_of_float32_and_do_not_depend_on_neighbours(family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    sequences = arbitrary(SEQLENS)
    loaded = load("onnxruntime", folder, quantization="int8", pooling="mean")
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
    monkeypatch.setattr(host, "max_int8_weight", lambda: 1)  # three values are left of a weight
    with pytest.raises(ModelError, match=r"^--quantization int8 costs this model too much") as refused:
        load("onnxruntime", save("bert", tmp_path / "model"), quantization="int8")
    assert "--quantization none" in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "most"),
    [("fpu avx2", 63), ("fpu avx2 avx_vnni", 127), ("avx512f avx512_vnni", 127), ("", 63)],
)
def test_weights_leave_room_for_sums_where_the_cpu_adds_in_16_bits(
    flags: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(host, "_cpu_info", lambda: {"flags": flags})
    assert host.max_int8_weight() == most
    assert most == 127 or 2 * 255 * most <= 2**15 - 1


def graph(shape: tuple[int, int]) -> tuple[onnx.ModelProto, NDArray[np.float32]]:
    """rows @ W, twice with the same W."""
    weights = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", shape[0]])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", shape[1]])
    nodes = [
        helper.make_node("MatMul", ["rows", "w"], ["first"]),
        helper.make_node("MatMul", ["rows", "w"], ["second"]),
        helper.make_node("Add", ["first", "second"], ["out"]),
    ]
    made = helper.make_graph(nodes, "g", [rows], [out], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), weights


def test_each_row_and_each_column_has_a_scale_of_its_own(tmp_path: Path) -> None:
    onnxruntime = import_onnxruntime()
    model, weights = graph((64, 48))
    weights *= np.geomspace(1e-3, 1e3, 48, dtype=np.float32)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "float.onnx")
    assert int8.quantize(tmp_path / "float.onnx", tmp_path / "int8.onnx", max_weight=127) == 2

    session = onnxruntime.InferenceSession(tmp_path / "int8.onnx", providers=["CPUExecutionProvider"])
    rows = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    rows *= np.geomspace(1e-4, 1e4, 8, dtype=np.float32)[:, None]
    rows[3] = 0
    (found,) = session.run(None, {"rows": rows})
    expected = 2 * rows @ weights
    scale = np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(weights, axis=0)
    assert np.abs(found - expected)[rows.any(axis=1)].max() > 0
    assert (np.abs(found - expected) <= 0.01 * scale + 1e-12).all()
    alone = [session.run(None, {"rows": row[None]})[0][0] for row in rows]
    assert difference(found, np.stack(alone)) == 0


def test_the_float32_weights_are_gone(tmp_path: Path) -> None:
    model, _ = graph((256, 256))
    onnx.save(model, tmp_path / "float.onnx")
    int8.quantize(tmp_path / "float.onnx", tmp_path / "int8.onnx", max_weight=127)
    assert (tmp_path / "int8.onnx").stat().st_size < 0.3 * (tmp_path / "float.onnx").stat().st_size


@pytest.mark.parametrize(("attributes", "is_int8"), [({}, True), ({"transB": 1}, False), ({"beta": 0.5}, False)])
def test_a_product_with_a_bias(attributes: dict[str, Any], is_int8: bool, tmp_path: Path) -> None:
    """As GPT-2 has them. Other forms stay as they are."""
    model, weights = graph((48, 48))
    bias = np.linspace(-9, 9, 48, dtype=np.float32)
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("Gemm", ["rows", "w", "bias"], ["out"], **attributes))
    model.graph.initializer.append(numpy_helper.from_array(bias, "bias"))
    onnx.save(model, tmp_path / "float.onnx")
    assert int8.quantize(tmp_path / "float.onnx", tmp_path / "int8.onnx", max_weight=127) == is_int8
    session = import_onnxruntime().InferenceSession(tmp_path / "int8.onnx", providers=["CPUExecutionProvider"])
    rows = np.random.default_rng(1).standard_normal((8, 48)).astype(np.float32)
    (found,) = session.run(None, {"rows": rows})
    expected = rows @ (weights.T if "transB" in attributes else weights) + attributes.get("beta", 1) * bias
    assert (cosines(found, expected) > 0.999).all()


def test_a_model_without_products_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8._Quantizer, "_is_product", lambda *_: False)
    with pytest.raises(ModelError) as refused:
        load("onnxruntime", save("bert", tmp_path / "model"), quantization="int8")
    assert str(refused.value) == "--quantization int8 finds no matrix products to quantize in this model"


@pytest.mark.full
def test_minilm_on_english_texts(minilm_folder: Path) -> None:
    """The figure that is promised, at load and for texts that it was not chosen on."""
    loaded = load("onnxruntime", minilm_folder, quantization="int8")
    notes = loaded.info.notes[0].split()
    loaded.close()
    smallest, median = (float(word) for word in notes if word.startswith("0."))
    assert smallest >= 0.98
    assert median >= 0.995

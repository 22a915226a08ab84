"""--dtype auto on a CPU: bfloat16 where its rows are near enough to those in float32, and where it multiplies in it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForSequenceClassification

from engine import registry
from engine.cpu import loading, openvino
from engine.cpu.openvino import Executor, Run
from engine.machine import host
from engine.model.tasks import SequenceScores
from engine.selftest.fidelity import Fidelity
from engine.types import ModelError
from tests.engine.cpu.engines import load, load_with_heads, options, pooled
from tests.engine.engines import difference, refusal
from tests.engine.tiny_models import Reference, arbitrary, save, save_whole

SEQLENS = (5, 17, 1, 30, 9)
LAST_NORM = "encoder.layer.2.output.LayerNorm.bias"


@pytest.fixture
def bfloat16_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that multiplies in bfloat16, whatever this one does: its rows are rounded to it."""

    def opened(folder: Path, *, dtype: str, **others: Any) -> Executor:
        executor = open_model(folder, dtype="float32", **others)
        if dtype == "float32":
            return executor
        streams = tuple(map(rounded, executor.streams))
        return replace(executor, streams=streams, wide=executor.wide and rounded(executor.wide))

    def rounded(run: Run) -> Run:
        return lambda inputs: to_bfloat16(run(inputs))

    open_model = openvino.open_model
    monkeypatch.setattr(openvino, "open_model", opened)
    monkeypatch.setattr(host, "multiplies_bfloat16", lambda: True)


def to_bfloat16(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return ((rows.view(np.uint32) + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@pytest.mark.usefixtures("bfloat16_cpu")
@pytest.mark.holds("Engines on a CPU")
def test_auto_is_bfloat16_where_its_rows_are_near_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next start does not measure it again."""
    folder, cache = save("bert", tmp_path / "model"), str(tmp_path / "cache")
    loaded = load(folder, dtype="auto", cache_dir=cache)
    rows = pooled(loaded, arbitrary(SEQLENS))
    loaded.close()
    assert 1e-5 < difference(rows, Reference(folder).pooled(arbitrary(SEQLENS), "mean")) < 0.01
    assert loaded.info.dtype == "bfloat16"
    assert "numpy" in loaded.info.notes[0]
    assert loaded.info.notes[1].startswith("--dtype auto computes in bfloat16: over 33 English texts the cosine")

    monkeypatch.setattr(loading, "convert", None)
    again = load(folder, dtype="auto", cache_dir=cache)
    assert difference(pooled(again, arbitrary(SEQLENS)), rows) == 0
    again.close()
    assert (again.info.dtype, again.info.notes) == (loaded.info.dtype, loaded.info.notes)


@pytest.mark.usefixtures("bfloat16_cpu")
def test_a_form_that_is_only_compared_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory would hold its weights twice."""
    opened: list[tuple[str, bool]] = []
    open_model = openvino.open_model

    def seen(folder: Path, *, dtype: str, **others: Any) -> Executor:
        executor = open_model(folder, dtype=dtype, **others)
        opened.append((dtype, executor.wide is not None))
        return executor

    monkeypatch.setattr(openvino, "open_model", seen)
    load(save("bert", tmp_path / "model"), dtype="auto").close()
    assert opened == [("float32", False), ("bfloat16", True)]


@pytest.mark.usefixtures("bfloat16_cpu")
@pytest.mark.holds("Engines on a CPU")
def test_a_model_with_outlier_dimensions_stays_in_float32(tmp_path: Path) -> None:
    folder, cache = save("bert", tmp_path / "model"), str(tmp_path / "cache")
    weights = load_file(folder / "model.safetensors")
    weights[LAST_NORM][:2] += 300  # beside which the other numbers are lost
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for _ in range(2):
        loaded = load(folder, dtype="auto", cache_dir=cache)
        rows = pooled(loaded, arbitrary(SEQLENS))
        loaded.close()
        assert loaded.info.dtype == "float32"
        assert loaded.info.notes[1].startswith(
            "--dtype auto computes in float32, because bfloat16 is too far from it: "
        )
        assert difference(rows, Reference(folder).pooled(arbitrary(SEQLENS), "mean")) <= 1e-5


@pytest.mark.usefixtures("bfloat16_cpu")
def test_scores_stay_in_float32(tmp_path: Path) -> None:
    folder = save_whole("bert", tmp_path / "model", AutoModelForSequenceClassification, num_labels=2)
    loaded = load_with_heads(folder, (SequenceScores(labels=("a", "b")),), dtype="auto")
    loaded.close()
    assert loaded.info.dtype == "float32"
    assert not [note for note in loaded.info.notes if "auto" in note]


@pytest.mark.parametrize(
    ("flags", "can"), [("avx2 avx512f avx512_vnni", False), ("avx512_bf16", True), ("amx_bf16 amx_tile", True)]
)
def test_a_cpu_multiplies_in_bfloat16_by_its_instructions(
    flags: str, can: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_cpu_info", lambda: {"flags": flags})
    assert host.multiplies_bfloat16() == can


def test_bfloat16_that_the_cpu_lacks_is_not_imitated_by_another_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = SimpleNamespace(Core=lambda: SimpleNamespace(get_property=lambda *_: ["FP32"]))
    monkeypatch.setattr(openvino, "import_openvino", lambda: library)
    asked = options(save("bert", tmp_path / "model"), dtype="bfloat16")
    with pytest.raises(ModelError, match=r"on the CPU: openvino: --dtype bfloat16 needs .*--engine transformers"):
        registry.load("auto", name="m", reason="asked", options=asked)


def test_float16_is_for_cpus_that_list_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This one takes the hint for float32, which only checks the way there. Elsewhere auto goes on to transformers."""
    folder = save("bert", tmp_path / "model")
    library = openvino.import_openvino()
    listed, hints = ["FP32"], list[str]()
    compile_model = library.Core.compile_model

    def compiled(core: Any, graph: Any, device: str, settings: dict[str, Any]) -> Any:
        hints.append(settings["INFERENCE_PRECISION_HINT"])
        return compile_model(core, graph, device, settings)

    monkeypatch.setattr(library.Core, "get_property", lambda *_: listed)
    monkeypatch.setattr(library.Core, "compile_model", compiled)
    assert "--dtype float16 needs a CPU with float16 arithmetic" in refusal(load, folder, dtype="float16")
    loaded = registry.load("auto", name="m", reason="asked", options=options(folder, dtype="float16"))
    assert loaded.info.engine == "transformers"
    loaded.close()

    listed.append("FP16")
    loaded = load(folder, dtype="float16")
    loaded.close()
    assert (loaded.info.dtype, set(hints)) == ("float16", {"f16"})


@pytest.mark.parametrize(
    ("found", "is_near"),
    [
        (Fidelity(0.998, 0.999, 0.9995, 0.99, 33), True),
        (Fidelity(0.9979, 0.9999, 0.9999, 1.0, 33), False),
        (Fidelity(0.999, 0.9992, 0.9994, 1.0, 33), False),
        (Fidelity(0.9999, 0.9999, 0.9999, 0.989, 33), False),
        (Fidelity(float("nan"), float("nan"), float("nan"), 1.0, 33), False),
    ],
)
def test_what_auto_takes_for_float32(found: Fidelity, is_near: bool) -> None:
    assert found.is_hardly_lower == is_near

"""Whole fused engines on the CPU: their rows against the transformers engine's, and what they refuse to load."""

import dataclasses
import logging
import socket
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine import messages, registry
from engine.fused import start as fused
from engine.fused import weights
from engine.fused.engine import FusedEngine
from engine.fused.quantization import gate
from engine.messages import LoadOptions
from engine.selftest import selfcheck
from engine.transformers import engine as transformers
from engine.types import Engine, EngineError, EngineErrorKind, ModelError, OutputKind
from tests.engine.engines import load_options, results
from tests.engine.fused.test_memory import QWEN3_8B
from tests.engine.test_worker import EngineProcess, receive, send_batch
from tests.engine.tiny_models import HIDDEN_SIZE, arbitrary, batch, save
from tests.server_e2e.running import PATIENCE
from wire import control
from wire.connection import BlockingConnection

SEQLENS = (5, 17, 1, 30, 9, 40)


def options(folder: Path, **others: Any) -> LoadOptions:
    return load_options(folder, **{"max_num_tokens": None, **others})


def load(folder: Path, **others: Any) -> FusedEngine:
    return fused.load(name="m", reason="asked", options=options(folder, **others))


def load_reference(folder: Path, **others: Any) -> Engine:
    return transformers.load(name="m", reason="asked", options=options(folder, **others))


def difference(rows: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    assert rows.shape == expected.shape
    assert rows.dtype == np.float32
    return float(np.abs(rows - expected).max() / np.abs(expected).max())


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save("bert", tmp_path / "model")


def test_token_types_reach_the_model(tiny: Path) -> None:
    engine, reference = load(tiny), load_reference(tiny)
    types = np.arange(sum(SEQLENS)) % 2
    made = batch(arbitrary(SEQLENS), types.tolist())
    (rows,), (expected,) = (results(one, made).values() for one in (engine, reference))
    assert difference(rows.values, expected.values) <= 1e-5
    (without,) = results(engine, batch(arbitrary(SEQLENS))).values()
    assert difference(without.values, expected.values) > 1e-3
    engine.close()
    reference.close()


def test_limits_are_those_of_the_options_and_the_model(tiny: Path) -> None:
    limits = load(tiny, max_num_tokens=1000, max_num_seqs=7, max_seqlen=33).limits
    assert (limits.max_num_tokens, limits.max_num_seqs, limits.max_seqlen) == (1000, 7, 33)
    assert limits.token_buckets[-2:] == (768, 1000)
    assert (limits.streams, limits.depth) == (1, 2)
    assert load(tiny).limits.max_num_tokens == 16_384
    assert load(tiny, max_num_tokens=1).limits.max_num_tokens == load(tiny).limits.max_seqlen


def test_a_full_batch_of_awkward_size(tiny: Path) -> None:
    """No bucket is a multiple of what matrix units take."""
    engine, reference = load(tiny, max_num_tokens=101), load_reference(tiny)
    made = batch(arbitrary((50, 50, 1)))
    (rows,), (expected,) = (results(one, made).values() for one in (engine, reference))
    assert difference(rows.values, expected.values) <= 1e-5
    reference.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtypes_on_a_cpu(dtype: str, tiny: Path) -> None:
    engine, reference = load(tiny, dtype=dtype), load_reference(tiny)
    made = batch(arbitrary(SEQLENS))
    (rows,), (expected,) = (results(one, made).values() for one in (engine, reference))
    assert engine.info.dtype == dtype
    assert difference(rows.values, expected.values) <= (1e-5 if dtype == "float32" else 5e-2)
    reference.close()


def test_an_id_outside_the_vocabulary_fails_its_batch_alone(tiny: Path) -> None:
    engine = load(tiny)
    engine.submit(batch([[10_000]]))
    _, failed = engine.collect()
    assert isinstance(failed, EngineError)
    assert failed.kind is EngineErrorKind.FAILED
    results(engine, batch([[5]]))


def test_the_registry_knows_it_and_the_phases_are_logged(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "embedline.engine"):
        engine = registry.load("fused", name="m", reason="asked", options=options(tiny))
    assert engine.info.engine == "fused"
    assert "m loaded in" in caplog.text
    assert all(phase in caplog.text for phase in ("import", "weights", "precision", "probe", "check"))
    assert [note for note in engine.info.notes if f"m: {note}" not in caplog.messages] == []
    assert engine.info.notes


def test_layers_that_stay_plain_where_fp8_was_asked_for_are_warned_of(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gate, "MIN_P1", 1.1)
    load(tiny, quantization="fp8")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning == "m: FP8 was requested, but 9 of 9 layers are not quantized"


@pytest.mark.parametrize("changes", [{"head_dim": 272}, {"hidden_size": 16_400}, {"embedding_size": 16_400}])
def test_sizes_that_kernels_can_not_take_are_refused(changes: dict[str, int]) -> None:
    weights._check_sizes(QWEN3_8B)
    with pytest.raises(ModelError, match=r"take (256|16384); --engine transformers may serve it$"):
        weights._check_sizes(dataclasses.replace(QWEN3_8B, **changes))  # type: ignore[arg-type]


@pytest.mark.full
def test_fp8_on_a_cpu_goes_through_the_gate(minilm_folder: Path) -> None:
    """Ungated, as what the gate decides is its own tests' matter."""
    engine = load(minilm_folder, quantization="fp8", is_gated=False, max_seqlen=32)
    assert engine.info.dtype == "fp8"
    assert any("fp8_row in 18 linear layers" in note for note in engine.info.notes)
    sequences = [np.arange(start, start + 12, dtype=np.int32) for start in (2000, 9000, 15_000)]
    rows, plain = (selfcheck.rows_of(one, sequences) for one in (engine, load(minilm_folder)))
    cosines = (rows * plain).sum(axis=1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(plain, axis=1)
    assert 0.98 < cosines.min() < 0.99999


def test_the_engine_process(tiny: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are too deep for a socket's path
        engine = EngineProcess(Path(folder), options(tiny, max_num_tokens=128), engine="fused")
        try:
            ready = engine.wait_for(control.READY)["info"]
            assert (ready["engine"], ready["dimensions"]) == ("fused", HIDDEN_SIZE)
            rows = _answer_of(engine, arbitrary((5, 1, 30)))
            expected = results(load(tiny), batch(arbitrary((5, 1, 30))))
            assert difference(rows, expected[OutputKind.POOLED].values) <= 1e-6
            engine.supervisor.send(control.STOP, 0, control.encode({}))
            assert engine.process.wait(PATIENCE) == 0
        finally:
            engine.close()


def _answer_of(engine: EngineProcess, sequences: list[list[int]]) -> NDArray[np.float32]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(20)
        channel.connect(engine.path)
        manager = BlockingConnection(channel)
        assert receive(manager)[0] == messages.READY
        send_batch(manager, 3, *sequences)
        kind, frame_id, payload = receive(manager)
        assert (kind, frame_id) == (messages.RESULT, 3)
        return messages.decode_result(payload)[0][OutputKind.POOLED].values

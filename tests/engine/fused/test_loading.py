"""Whole fused engines on the CPU: their rows against the transformers engine's, and what they refuse to load."""

import dataclasses
import json
import logging
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from engine import messages, registry
from engine.fused import probe
from engine.fused import start as fused
from engine.fused.assembly import Model, ModelCompute
from engine.fused.checkpoint import from_folder
from engine.fused.engine import FusedEngine
from engine.fused.quantization import gate
from engine.fused.runner.packing import Packer, views
from engine.fused.runner.shape import Shape
from engine.messages import LoadOptions
from engine.selftest import selfcheck
from engine.selftest.warmup import warm_up
from engine.transformers import engine as transformers
from engine.types import Batch, Engine, EngineError, EngineErrorKind, ModelError, OutputKind, Results
from tests.engine.fused.test_memory import QWEN3_8B
from tests.engine.load_options import load_options
from tests.engine.test_worker import EngineProcess, receive, send_batch
from tests.engine.tiny_models import HIDDEN_SIZE, arbitrary, batch, save
from wire import control
from wire.blocking import BlockingConnection

SEQLENS = (5, 17, 1, 30, 9, 40)
BOTH = OutputKind.POOLED | OutputKind.TOKENS


def options(folder: Path, **others: Any) -> LoadOptions:
    return load_options(folder, **{"max_num_tokens": None, **others})


def load(folder: Path, **others: Any) -> FusedEngine:
    return fused.load(name="m", reason="asked", options=options(folder, **others))


def load_reference(folder: Path, **others: Any) -> Engine:
    return transformers.load(name="m", reason="asked", options=options(folder, **others))


def results_of(engine: Engine, made: Batch) -> Results:
    ticket = engine.submit(made)
    collected, results = engine.collect()
    assert collected == ticket
    assert isinstance(results, dict), results
    assert list(results) == list(made.outputs)
    return results


def asking(made: Batch, outputs: OutputKind) -> Batch:
    return Batch("m", outputs, made.token_ids, made.cu_seqlens, made.token_type_ids)


def difference(rows: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    assert rows.shape == expected.shape
    assert rows.dtype == np.float32
    return float(np.abs(rows - expected).max() / np.abs(expected).max())


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save("bert", tmp_path / "model")


@pytest.fixture(scope="module")
def minilm(minilm_folder: Path) -> Iterator[FusedEngine]:
    loaded = load(minilm_folder)
    yield loaded
    loaded.close()


@pytest.mark.parametrize("pooling", ["cls", "mean", "last-token"])
@pytest.mark.parametrize("family", ["bert", "roberta", "qwen3", "gemma3_text, bidirectional"])
def test_rows_are_those_of_the_transformers_engine(family: str, pooling: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    engine, reference = load(folder, pooling=pooling), load_reference(folder, pooling=pooling)
    together = batch(arbitrary(SEQLENS))
    for made in (together, *(batch([sequence]) for sequence in arbitrary(SEQLENS))):
        expected = results_of(reference, asking(made, BOTH))
        for outputs in (OutputKind.POOLED, OutputKind.TOKENS, BOTH):
            for kind, rows in results_of(engine, asking(made, outputs)).items():
                assert difference(rows.values, expected[kind].values) <= 1e-5, (kind, outputs)
                assert (rows.offsets is None) == (kind is OutputKind.POOLED)
    engine.close()
    reference.close()


def test_token_types_reach_the_model(tiny: Path) -> None:
    engine, reference = load(tiny), load_reference(tiny)
    types = np.arange(sum(SEQLENS)) % 2
    made = batch(arbitrary(SEQLENS), types.tolist())
    (rows,), (expected,) = (results_of(one, made).values() for one in (engine, reference))
    assert difference(rows.values, expected.values) <= 1e-5
    (without,) = results_of(engine, batch(arbitrary(SEQLENS))).values()
    assert difference(without.values, expected.values) > 1e-3
    engine.close()
    reference.close()


def test_minilm_gives_the_rows_of_the_transformers_engine(minilm: FusedEngine, minilm_folder: Path) -> None:
    reference = load_reference(minilm_folder)
    ids = np.random.default_rng(0).integers(999, 30_000, 600, np.int32)
    cu_seqlens = np.cumsum([0, 3, 200, 31, 1, 256, 40], dtype=np.int32)
    made = Batch("m", BOTH, ids[: cu_seqlens[-1]], cu_seqlens)
    expected = results_of(reference, made)
    for kind, rows in results_of(minilm, made).items():
        assert difference(rows.values, expected[kind].values) <= 1e-5
    assert (minilm.info.pooling, minilm.info.normalize, minilm.info.dimensions) == ("mean", True, 384)
    assert (minilm.info.engine, minilm.info.dtype, minilm.info.device) == ("fused", "float32", "cpu")
    reference.close()


def test_rows_are_the_same_alone_and_in_any_batch(minilm: FusedEngine) -> None:
    numbers = np.random.default_rng(0)
    sequences = [numbers.integers(999, 30_000, seqlen, np.int32) for seqlen in numbers.integers(1, 60, 24)]
    alone = np.concatenate([selfcheck.rows_of(minilm, [sequence]) for sequence in sequences])
    for size in (2, 9, 24):
        chosen = numbers.permutation(len(sequences))[:size]
        together = selfcheck.rows_of(minilm, [sequences[number] for number in chosen])
        assert difference(together, alone[chosen]) <= 1e-5


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
    (rows,), (expected,) = (results_of(one, made).values() for one in (engine, reference))
    assert difference(rows.values, expected.values) <= 1e-5
    reference.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtypes_on_a_cpu(dtype: str, tiny: Path) -> None:
    engine, reference = load(tiny, dtype=dtype), load_reference(tiny)
    made = batch(arbitrary(SEQLENS))
    (rows,), (expected,) = (results_of(one, made).values() for one in (engine, reference))
    assert engine.info.dtype == dtype
    assert difference(rows.values, expected.values) <= (1e-5 if dtype == "float32" else 5e-2)
    reference.close()


def test_the_warm_up_passes(tiny: Path) -> None:
    limits = warm_up(load(tiny, max_num_tokens=256))
    assert limits.tokens_per_second > 0


def test_an_id_outside_the_vocabulary_fails_its_batch_alone(tiny: Path) -> None:
    engine = load(tiny)
    engine.submit(batch([[10_000]]))
    _, failed = engine.collect()
    assert isinstance(failed, EngineError)
    assert failed.kind is EngineErrorKind.FAILED
    results_of(engine, batch([[5]]))


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
    from_folder._check_sizes(QWEN3_8B)
    with pytest.raises(ModelError, match=r"take (256|16384); --engine transformers may serve it$"):
        from_folder._check_sizes(dataclasses.replace(QWEN3_8B, **changes))  # type: ignore[arg-type]


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


# --- what is refused


def rewrite(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"device": "tpu"}, "runs on cuda:0, cuda:1, … or cpu, not on 'tpu'"),
        ({"device": "cuda:x"}, "runs on cuda:0"),
        ({"dtype": "float16"}, "--dtype float16 is not for the fused engine on a CPU"),
        ({"dtype": "int8"}, "--dtype int8"),
        ({"quantization": "int8"}, "--quantization int8"),
        ({"path": "/nowhere"}, "/nowhere"),
    ],
)
def test_options_that_can_not_be_are_refused_in_one_line(others: dict[str, Any], why: str, tiny: Path) -> None:
    with pytest.raises(ModelError, match=why) as refused:
        load(tiny, **others)
    assert "\n" not in str(refused.value)


def test_an_unknown_architecture_names_the_engine_that_may_know_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"architecture 'gpt2'; --engine transformers"):
        load(save("gpt2", tmp_path / "model"))


def test_sizes_that_fp8_can_not_have(tmp_path: Path) -> None:
    config = BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=1, num_attention_heads=4, intermediate_size=40)
    BertModel(config).save_pretrained(tmp_path / "model")
    with pytest.raises(ModelError, match="--quantization fp8: no linear layer's sizes are multiples of 16"):
        load(tmp_path / "model", quantization="fp8")
    assert "not quantized" in load(tmp_path / "model", quantization="auto").info.notes[0]


def test_a_config_that_transformers_can_not_read(tiny: Path) -> None:
    rewrite(tiny, num_attention_heads="four")
    with pytest.raises(ModelError, match=r"transformers can't read .*config\.json"):
        load(tiny)


def test_rows_that_are_not_finite(tiny: Path) -> None:
    tensors = load_file(tiny / "model.safetensors")
    tensors["encoder.layer.1.output.dense.bias"][0] = torch.nan
    save_file(tensors, tiny / "model.safetensors")
    with pytest.raises(ModelError, match="rows that are not finite"):
        load(tiny)


def test_a_leak_between_sequences_is_noticed(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Packer.write

    def leaking(packer: Packer, block: NDArray[np.int32], made: Batch, shape: Shape) -> None:
        write(packer, block, made, shape)
        tiles = views(torch.from_numpy(block), shape).tiles.table
        tiles[0, 4] += tiles[0, 3] > 0  # one key more, from before or behind

    monkeypatch.setattr(Packer, "write", leaking)
    with pytest.raises(ModelError, match="rows depend on the batch"):
        load(tiny)


def test_an_engine_that_fails_is_not_ready(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(ModelCompute, "__call__", failing)
    with pytest.raises(ModelError, match="the fused engine can't run the model: RuntimeError: no such kernel"):
        load(tiny)


# --- where memory runs out


def lacking_memory(monkeypatch: pytest.MonkeyPatch, *, above: int) -> list[int]:
    """Batches of more tokens than `above` run out of it; the sizes that were tried."""
    tried: list[int] = []
    probed = probe._probed

    def smaller(model: Model, max_num_tokens: int) -> FusedEngine | EngineError:
        tried.append(max_num_tokens)
        if max_num_tokens > above:
            return EngineError(EngineErrorKind.OUT_OF_MEMORY, "CUDA out of memory")
        return probed(model, max_num_tokens)

    monkeypatch.setattr(probe, "_probed", smaller)
    return tried


@pytest.mark.holds("Engines on a GPU")
def test_batches_are_made_smaller_until_they_fit(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = lacking_memory(monkeypatch, above=5000)
    engine = load(tiny)
    assert tried == [16_384, 8192, 4096]
    assert engine.limits.max_num_tokens == engine.limits.token_buckets[-1] == 4096
    assert engine.info.notes[0] == "batches of at most 4096 tokens: 16384 run out of memory"


@pytest.mark.full
def test_the_last_try_is_one_sequence_of_the_longest(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = lacking_memory(monkeypatch, above=100)
    assert load(tiny, max_num_tokens=120).limits.max_num_tokens == 64
    assert tried == [120, 64]
    tried = lacking_memory(monkeypatch, above=10)
    with pytest.raises(ModelError, match=r"one sequence of 64 tokens runs out of memory on cpu: .*--max-input-length"):
        load(tiny)
    assert tried[-1] == 64


def test_any_other_failure_of_the_probe_is_told(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = EngineError(EngineErrorKind.FATAL, "an illegal memory access was encountered")
    monkeypatch.setattr(probe, "_probed", lambda *_: failed)
    with pytest.raises(ModelError, match="can't run the model: an illegal memory access"):
        load(tiny)


# --- as a process


def test_the_engine_process(tiny: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are too deep for a socket's path
        engine = EngineProcess(Path(folder), options(tiny, max_num_tokens=128), engine="fused")
        try:
            ready = engine.wait_for(control.READY)["info"]
            assert (ready["engine"], ready["dimensions"]) == ("fused", HIDDEN_SIZE)
            rows = _answer_of(engine, arbitrary((5, 1, 30)))
            expected = results_of(load(tiny), batch(arbitrary((5, 1, 30))))
            assert difference(rows, expected[OutputKind.POOLED].values) <= 1e-6
            engine.supervisor.send(control.STOP, 0, control.encode({}))
            assert engine.process.wait(20) == 0
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

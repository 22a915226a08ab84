"""What ends the loading of the fused engine: impossible options, wrong rows, too little memory."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from engine.fused import loading
from engine.fused import start as fused
from engine.fused.assembly import Model, ModelCompute
from engine.fused.engine import FusedEngine
from engine.fused.packing import Packer, Shape, views
from engine.messages import LoadOptions
from engine.selftest import selfcheck
from engine.selftest.sample_ids import Sequences
from engine.types import Batch, Engine, EngineError, EngineErrorKind, ModelError, RowsDiffer
from tests.engine.engines import load_options
from tests.engine.tiny_models import save


def options(folder: Path, **others: Any) -> LoadOptions:
    return load_options(folder, **{"max_num_tokens": None, **others})


def load(folder: Path, **others: Any) -> FusedEngine:
    return fused.load(name="m", reason="asked", options=options(folder, **others))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save("bert", tmp_path / "model")


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


def test_rows_that_depend_on_a_neighbour_full_of_padding_are_refused(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_of = selfcheck.rows_of

    def leaking(engine: Engine, sequences: Sequences) -> NDArray[np.float32]:
        rows = rows_of(engine, sequences)
        is_beside = len(sequences) > 1 and any(len(each) > 3 and (each[1:-1] == 0).all() for each in sequences)
        return rows * np.float32(1 + 0.1 * is_beside)

    load(tiny).close()
    monkeypatch.setattr(selfcheck, "rows_of", leaking)
    with pytest.raises(RowsDiffer, match="rows depend on the batch"):
        load(tiny)


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
    rewrite(tiny, hidden_dropout_prob="many")
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


def lacking_memory(monkeypatch: pytest.MonkeyPatch, *, above: int) -> list[int]:
    """Batches of more tokens than `above` run out of it; the sizes that were tried."""
    tried: list[int] = []
    probed = loading._probed

    def smaller(model: Model, max_num_tokens: int) -> FusedEngine | EngineError:
        tried.append(max_num_tokens)
        if max_num_tokens > above:
            return EngineError(EngineErrorKind.OUT_OF_MEMORY, "CUDA out of memory")
        return probed(model, max_num_tokens)

    monkeypatch.setattr(loading, "_probed", smaller)
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
    monkeypatch.setattr(loading, "_probed", lambda *_: failed)
    with pytest.raises(ModelError, match="can't run the model: an illegal memory access"):
        load(tiny)

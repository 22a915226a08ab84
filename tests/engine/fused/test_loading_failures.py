"""What ends the loading of the fused engine, whose fault it is, and what could serve the model instead."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, PretrainedConfig

from engine.fused import loading
from engine.fused.adapters.adapter import activation_of, check_rope, require
from engine.fused.assembly import Model
from engine.fused.engine import FusedEngine
from engine.fused.offer import check_outputs
from engine.fused.outputs import ModelCompute
from engine.fused.packing import Packer, Shape, views
from engine.model import model_folder
from engine.model.tasks import Task, VocabularyWeights
from engine.selftest import selfcheck
from engine.selftest.comparison import not_finite
from engine.selftest.sample_ids import Sequences
from engine.types import (
    Batch,
    DeviceTrouble,
    Engine,
    EngineError,
    EngineErrorKind,
    ModelError,
    OutputKind,
    Results,
    Rows,
    RowsDiffer,
)
from tests.engine.engines import refusal
from tests.engine.folder_files import change
from tests.engine.fused.loaded import load
from tests.engine.tiny_models import save


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
    assert why in refusal(load, tiny, **others)


def test_rows_that_depend_on_a_neighbour_full_of_padding_are_refused(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results_of = selfcheck.results_of

    def leaking(engine: Engine, sequences: Sequences, outputs: OutputKind) -> Results:
        results = results_of(engine, sequences, outputs)
        is_beside = len(sequences) > 1 and any(len(each) > 3 and (each[1:-1] == 0).all() for each in sequences)
        factor = np.float32(1 + 0.1 * is_beside)
        return {kind: Rows(rows.values * factor, rows.offsets) for kind, rows in results.items()}

    monkeypatch.setattr(selfcheck, "results_of", leaking)
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
    change(tiny / "config.json", hidden_dropout_prob="many")
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
    tried = lacking_memory(monkeypatch, above=150)
    engine = load(tiny)
    assert tried == [512, 256, 128]
    assert engine.limits.max_num_tokens == engine.limits.token_buckets[-1] == 128
    assert engine.info.notes[0] == "batches of at most 128 tokens: 512 run out of memory"


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


@pytest.mark.parametrize(
    ("kind", "is_the_devices", "words"),
    [
        (EngineErrorKind.FAILED, False, "; --engine transformers may"),
        (EngineErrorKind.NON_FINITE, False, "; --engine transformers may"),
        (EngineErrorKind.OUT_OF_MEMORY, True, "; free some memory there, or lower --max-batch-tokens"),
        (EngineErrorKind.FATAL, True, "the GPU is lost to this process"),
    ],
)
def test_whose_fault_it_is(kind: EngineErrorKind, is_the_devices: bool, words: str) -> None:
    error = selfcheck.cannot_run("fused", EngineError(kind, "boom"))
    assert isinstance(error, DeviceTrouble) is is_the_devices
    assert str(error).startswith("the fused engine can't run the model: boom")
    assert words in str(error)


@pytest.mark.parametrize(
    ("engine", "dtype", "words"),
    [
        ("fused", "float16", "; --dtype bfloat16 may serve it"),
        ("transformers", "float16", "; --dtype bfloat16 or float32 may serve it"),
        ("fused", "bfloat16", "; --engine transformers --dtype float32 --quantization none may serve it"),
        ("openvino", "float32", "; --engine transformers --dtype float32 --quantization none may serve it"),
        ("transformers", "float32", "; its weights may be damaged, and no engine would do better"),
    ],
)
def test_what_is_said_of_rows_that_are_not_finite(engine: str, dtype: str, words: str) -> None:
    assert str(not_finite(engine, dtype)) == f"the model gives rows that are not finite{words}"


def test_a_configuration_that_is_not_for_it_names_another_engine() -> None:
    config = PretrainedConfig()
    config.rope_parameters = {"rope_type": "spiral", "rope_theta": 1e4}
    config.hidden_size = 8
    refused = []
    for asked in (
        lambda: activation_of("sine"),
        lambda: require(config, hidden_size=(16,)),
        lambda: check_rope(config),
    ):
        with pytest.raises(ModelError) as error:
            asked()
        refused.append(str(error.value))
    assert all(message.endswith("; --engine transformers may serve the model") for message in refused)


@pytest.mark.holds("What a model is for")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_static": True}, "the fused engine computes no static embeddings; --engine static does"),
        (
            {"task": Task.SPARSE, "heads": (VocabularyWeights(pooling="sum"),)},
            "this model adds a word's weights up (pooling sum), and the fused engine takes the largest; "
            "--engine transformers may serve the model",
        ),
        (
            {"include_prompt": False},
            "this model leaves the prompt's tokens out of the pooling (include_prompt), which the fused engine "
            "can't do; "
            "--engine transformers may serve the model",
        ),
        (
            {"poolings": ("max",)},
            "the fused engine pools by one of cls, mean and last-token, not by max; --engine transformers does",
        ),
    ],
)
def test_what_it_gives_no_rows_of(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = model_folder.read(save("bert", tmp_path / "model"))
    check_outputs(folder)
    with pytest.raises(ModelError) as refused:
        check_outputs(dataclasses.replace(folder, **changes))
    assert str(refused.value) == message

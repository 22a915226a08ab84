"""Which engine serves a model, what auto does where the first can't, and what is refused at load."""

import dataclasses
import importlib.util
import json
import logging
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import registry
from engine.cpu import loading, openvino, selftest
from engine.cpu.converting import convert
from engine.cpu.offer import compile_options_of
from engine.cpu.openvino import Executor
from engine.machine import cores, host
from engine.model import model_folder
from engine.model.model_folder import read_with
from engine.types import ModelError
from tests.engine.cpu.engines import load, options
from tests.engine.tiny_models import save
from tests.tiers import full


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save("bert", tmp_path / "model")


@pytest.mark.holds("Engines on a CPU")
def test_auto_is_openvino_where_it_can_serve_the_model(tiny: Path) -> None:
    engine, reason = registry.choose("auto")
    loaded = registry.load(engine, name="m", reason=reason, options=options(tiny))
    loaded.close()
    assert loaded.info.engine == "openvino"
    assert (
        loaded.info.reason == "--engine auto: the first of openvino, transformers that can serve this model on the CPU"
    )


@pytest.mark.holds("Engines on a CPU")
def test_auto_is_transformers_where_the_self_test_fails(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(selftest, "is_near", lambda *_, **__: False)
    engine, reason = registry.choose("auto")
    with caplog.at_level(logging.WARNING):
        loaded = registry.load(engine, name="m", reason=reason, options=options(tiny))
    loaded.close()
    assert loaded.info.engine == "transformers"
    assert "; not openvino: the compiled model's rows are not the original's" in loaded.info.reason
    assert "the openvino engine can't serve m" in caplog.text


@pytest.mark.holds("A named engine never falls back", "Engines on a CPU")
def test_a_named_engine_does_not_fall_back(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "is_near", lambda *_, **__: False)
    engine, reason = registry.choose("openvino")
    with pytest.raises(ModelError, match="rows are not the original's"):
        registry.load(engine, name="m", reason=reason, options=options(tiny))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device": "cuda:0"}, "the openvino engine runs on the CPU, not on 'cuda:0'"),
        ({"dtype": "float64"}, "--dtype float64 is not one of auto, float32, bfloat16, float16"),
        ({"quantization": "fp8"}, "--quantization fp8 is not for the openvino engine"),
        ({"quantization": "int8", "dtype": "bfloat16"}, "leave --dtype bfloat16 out"),
        ({"quantization": "int8", "dtype": "float16"}, "leave --dtype float16 out"),
    ],
)
def test_what_the_engine_does_not_do(given: dict[str, Any], message: str, tiny: Path) -> None:
    with pytest.raises(ModelError) as refused:
        load(tiny, **given)
    assert message in str(refused.value)


@pytest.mark.holds("Engines on a CPU")
@pytest.mark.parametrize("num_threads", [1, 3])
def test_an_engine_has_a_stream_for_each_of_its_threads(num_threads: int, tiny: Path) -> None:
    before = set(threading.enumerate())
    loaded = load(tiny, num_threads=num_threads)
    streams = {thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("stream")}
    loaded.close()
    assert streams == {f"stream {number}" for number in range(num_threads)}


def test_an_executor_that_is_not_installed(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def find_spec(package: str, *others: Any) -> ModuleSpec | None:
        return None if package == "openvino" else found(package, *others)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    with pytest.raises(ModelError, match=r"the openvino engine needs openvino, .* pip install 'embedline\[cpu\]'"):
        load(tiny)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value: float, tiny: Path) -> None:
    weights = load_file(tiny / "model.safetensors")
    weights["embeddings.LayerNorm.bias"] = torch.full_like(weights["embeddings.LayerNorm.bias"], value)
    save_file(weights, tiny / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="not finite"):
        load(tiny)


def test_nothing_is_kept_of_what_is_refused(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "is_near", lambda *_, **__: False)
    with pytest.raises(ModelError):
        load(tiny, cache_dir=str(tmp_path / "cache"))
    assert list((tmp_path / "cache" / "compiled").iterdir()) == []


def test_a_folder_without_its_weights(tiny: Path) -> None:
    weights = load_file(tiny / "model.safetensors")
    save_file({name: weights[name] for name in sorted(weights)[:3]}, tiny / "model.safetensors")
    with pytest.raises(ModelError, match="are missing"):
        load(tiny)


def test_a_tokenizer_that_is_not_one(tiny: Path) -> None:
    (tiny / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(ModelError, match=r"tokenizer.json can't be used"):
        load(tiny, quantization="int8")


def test_memory_decides_how_many_streams_take_long_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """62 tokens take 4 bytes * 28 * 32 * 62 = 222,208, and with biases as many * 2 * 4 * 62 * 62 = 123,008 more."""
    folder = model_folder.read(save("roberta", tmp_path / "model"))
    monkeypatch.setattr(loading, "_WITH_BIASES", {"roberta"})
    monkeypatch.setattr(cores, "usable", lambda: 8)
    for num_bytes, found in ((345_216, 1), (2 * 345_216, 2), (2 * 345_215, 1), (99 * 345_216, 8)):
        monkeypatch.setattr(host, "memory", lambda num_bytes=num_bytes: 2 * num_bytes)
        assert loading.num_long_streams(folder, num_threads=8) == found
    assert not caplog.records
    monkeypatch.setattr(host, "memory", lambda: 2 * 345_215)
    assert loading.num_long_streams(folder, num_threads=8) == 1
    assert caplog.messages[0].endswith("; --max-input-length 61 fits")
    monkeypatch.setattr(host, "memory", lambda: 2 * 2 * 123_007)
    with pytest.raises(ModelError, match=r"^a sequence of 62 tokens could take .*; --max-input-length 61 fits$"):
        loading.num_long_streams(folder, num_threads=4)  # half of the cores, half of the memory


def test_without_memory_for_a_second_compilation_one_core_computes_a_lone_text(
    tiny: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = tmp_path_factory.mktemp("converted")
    described = read_with(options(tiny))
    convert(described, compile_options_of(described, options(tiny)), target=target, num_threads=2)
    size = (target / "model.bin").stat().st_size
    for free, has_wide in ((4 * size, True), (2 * size, True), (2 * size - 1, False)):
        monkeypatch.setattr(host, "free_memory", lambda free=free: free)
        executor = openvino.open_model(target, dtype="float32", num_threads=2)
        assert (executor.wide is not None) == has_wide
    (message,) = caplog.messages
    assert message.startswith("a text that is alone is computed on one core: ")


def test_an_export_that_fails_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError, match=r"^openvino can't convert 'gpt_oss'"):
        load(save("gpt_oss", tmp_path / "model"))
    print("kept")
    assert capfd.readouterr().out == "kept\n"


@pytest.mark.parametrize(
    ("damaged", "quantization"), [("streams", "none"), ("wide", "int8"), *full(("wide", "none"), ("streams", "int8"))]
)
def test_rows_that_are_wrong_in_one_way_of_computing(
    damaged: str, quantization: str, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shuffled(folder: Path, **given: Any) -> Executor:
        right = opened(folder, **given)
        assert right.wide is not None
        wide = right.wide
        if damaged == "wide":
            return dataclasses.replace(right, wide=lambda inputs: wide(inputs)[..., ::-1])
        return dataclasses.replace(right, streams=(lambda inputs: right.streams[0](inputs)[..., ::-1],))

    opened = openvino.open_model
    monkeypatch.setattr(openvino, "open_model", shuffled)
    with pytest.raises(ModelError, match=r"rows are not the original's|costs this model too much"):
        load(tiny, quantization=quantization)


@pytest.mark.parametrize("quantization", ["none", *full("int8")])
def test_rows_that_are_not_finite(quantization: str, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path, **given: Any) -> Executor:
        right = opened(folder, **given)
        assert right.wide is not None
        wide = right.wide
        return dataclasses.replace(right, wide=lambda inputs: wide(inputs) * np.float32("nan"))

    opened = openvino.open_model
    monkeypatch.setattr(openvino, "open_model", broken)
    with pytest.raises(ModelError, match=r"^the compiled model gives rows that are not finite$"):
        load(tiny, quantization=quantization)

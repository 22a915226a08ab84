"""Quantized models kept and found again, whatever befell the disk; for which GPU and folder they are; kernels too."""

import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
import torch
from torch import Tensor

from engine.fused import loading, offer
from engine.fused.model.forwards import Weights
from engine.fused.model.linear import Fp8Linear, Linear, PlainLinear
from engine.fused.model.spec import LayerSpec
from engine.fused.offer import FusedConfig
from engine.fused.quantization import cache
from engine.fused.quantization import cache as store_module
from engine.fused.quantization.cache import QuantizedCache, QuantizedModel, cache_for
from engine.fused.quantization.gate import Outcome
from engine.fused.quantization.measures import Figure, Measured
from engine.fused.start import Phases
from engine.messages import LoadOptions
from engine.model.tasks import (
    TOKEN_WEIGHTS_FILE,
    Activation,
    Dense,
    PairTemplate,
    SequenceScores,
    TokenVectors,
    TokenWeights,
)
from engine.store import fingerprint, tensor_file
from engine.store.cache import Cache
from tests.engine.folder_files import change, write
from tests.engine.fused.loaded import fp8_options
from tests.engine.fused.model.models import CPU, SPEC
from tests.engine.tiny_models import save

SAME = Measured((Figure(output="logits", name="largest_change", value=0.0, best=0.0, limit=0.02),))
QUANTIZED = ("layers.0.gate_up", "layers.1.gate_up")


def outcome(*, quantized: tuple[str, ...] = QUANTIZED, is_enforced: bool = True) -> Outcome:
    return Outcome(
        num_texts=5,
        num_tokens=50,
        max_seqlen=20,
        quantized=quantized,
        reverted=("layers.0.down", "layers.1.down"),
        found=SAME,
        found_of_all=SAME,
        passed=True,
        is_enforced=is_enforced,
        num_evaluations=2,
    )


def linear(num_rows: int, num_columns: int, *, has_bias: bool = True) -> PlainLinear:
    bias = torch.randn(num_rows, dtype=torch.bfloat16) if has_bias else None
    return PlainLinear(torch.randn(num_rows, num_columns, dtype=torch.bfloat16), bias)


def model() -> QuantizedModel:
    """Two layers that share what isn't quantized."""
    tensors: dict[str, Tensor] = {
        "words": torch.randn(9, 16, dtype=torch.bfloat16),
        "layers.0.mlp_norm.weight": torch.randn(16),
        "rope.0": torch.randn(5, 8),
    }
    tensors["layers.1.mlp_norm.weight"] = tensors["layers.0.mlp_norm.weight"]
    down = linear(16, 32)
    linears: dict[str, Linear] = {"layers.0.down": down, "layers.1.down": PlainLinear(down.weight, down.bias)}
    linears |= {name: Fp8Linear.of(linear(32, 16, has_bias=name == QUANTIZED[0])) for name in QUANTIZED}
    spec = dataclasses.replace(SPEC, scaling=0.1 + 0.2, layers=(LayerSpec(window=3, rope=0), LayerSpec()))
    return QuantizedModel(spec, Weights(tensors, linears), outcome(), ("FP8: as asked", "all is well"))


def store_in(folder: Path) -> QuantizedCache:
    return QuantizedCache(Cache(folder / "kept"), "key", device=CPU, dtype=torch.bfloat16)


class Stored(NamedTuple):
    store: QuantizedCache
    entry: Path
    kept: QuantizedModel


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    store, kept = store_in(tmp_path), model()
    store.put(kept)
    return Stored(store, tmp_path / "kept" / "key", kept)


def test_what_is_kept_is_found_as_it_was(stored: Stored) -> None:
    found, kept = stored.store.find(), stored.kept
    assert isinstance(found, QuantizedModel)
    assert found.spec == kept.spec
    assert found.outcome == kept.outcome
    assert found.notes == (*kept.notes, f"quantized weights taken from {stored.entry}")
    assert set(found.weights.tensors) == set(kept.weights.tensors)
    for name, tensor in kept.weights.tensors.items():
        same(found.weights.tensors[name], tensor)
    assert set(found.weights.linears) == set(kept.weights.linears)
    for name, expected in kept.weights.linears.items():
        layer = found.weights.linears[name]
        assert type(layer) is type(expected)
        assert layer.is_quantized == (name in QUANTIZED)
        rows = torch.randn(3, 16 if name in QUANTIZED else 32, dtype=torch.bfloat16)
        if not layer.is_quantized:
            assert torch.equal(layer(rows), expected(rows))
            continue
        assert layer.tensors.keys() == expected.tensors.keys()
        for kind, tensor in layer.tensors.items():
            same(tensor, expected.tensors[kind])
        assert layer.dtype == torch.bfloat16  # type: ignore[attr-defined]


def same(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert torch.equal(found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def test_what_layers_share_is_kept_once_and_shared_again(stored: Stored) -> None:
    names = tensor_file.byte_ranges(stored.entry / "weights.safetensors").keys()
    assert len([name for name in names if name.endswith("down.weight")]) == 1
    assert len([name for name in names if "mlp_norm" in name]) == 1
    found = stored.store.find()
    assert isinstance(found, QuantizedModel)
    first, second = (found.weights.linears[f"layers.{layer}.down"] for layer in range(2))
    assert isinstance(first, PlainLinear)
    assert isinstance(second, PlainLinear)
    assert first.weight.data_ptr() == second.weight.data_ptr()


def test_what_was_measured_only_is_not_kept(tmp_path: Path) -> None:
    kept = model()
    store_in(tmp_path).put(QuantizedModel(kept.spec, kept.weights, outcome(is_enforced=False), ()))
    assert not (tmp_path / "kept").exists()


def test_of_what_the_gate_gave_up_only_that_is_kept(tmp_path: Path) -> None:
    kept, rejected, store = model(), outcome(quantized=()), store_in(tmp_path)
    store.put(QuantizedModel(kept.spec, kept.weights, rejected, ()))
    assert store.find() == rejected
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.holds("A warm fused start imports no transformers")
@pytest.mark.parametrize("damage", ["cut", "spec", "outcome", "layers", "tensors"])
def test_a_damaged_entry_is_discarded(damage: str, stored: Stored, caplog: pytest.LogCaptureFixture) -> None:
    file = stored.entry / "weights.safetensors"
    if damage == "cut":
        os.truncate(file, file.stat().st_size - 1)
    else:
        damage_whole_entry(damage, stored)
    with caplog.at_level(logging.WARNING):
        assert stored.store.find() is None
    assert "is not used" in caplog.text
    assert not stored.entry.exists()
    stored.store.put(stored.kept)
    assert stored.store.find() is not None


def damage_whole_entry(damage: str, stored: Stored) -> None:
    """As another version of ours could have written it: nothing is wrong with a file."""
    facts = json.loads((stored.entry / "manifest.json").read_text())["facts"]
    content = (stored.entry / "weights.safetensors").read_bytes()
    if damage == "spec":
        facts["spec"]["unknown"] = 1
    elif damage == "outcome":
        del facts["outcome"]["passed"]
    elif damage == "layers":
        facts["layers"]["layers.0.gate_up"].remove("scales")
    shutil.rmtree(stored.entry)
    cache = Cache(stored.entry.parent)
    with cache.new_folder() as folder:
        if damage == "tensors":
            tensor_file.write(folder / "weights.safetensors", {"words": torch.zeros(1)})
        else:
            (folder / "weights.safetensors").write_bytes(content)
        cache.put("key", folder, facts)


def test_a_gpu_without_memory_is_no_reason_to_discard(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(store_module, "reader_for", without_memory)
    with pytest.raises(torch.OutOfMemoryError):
        stored.store.find()
    assert stored.entry.exists()


@pytest.mark.parametrize("kind", ["too little room", "full", "file in the way"])
def test_a_disk_that_does_not_keep_it_is_only_warned_of(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if kind == "too little room":
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 30))
    elif kind == "full":
        monkeypatch.setattr(tensor_file, "_write_all", full)
    else:
        (tmp_path / "kept").touch()
    store = store_in(tmp_path)
    with caplog.at_level(logging.WARNING):
        store.put(model())
    assert len(caplog.records) == 1
    assert "not cached" in caplog.text
    if kind != "file in the way":
        assert not list((tmp_path / "kept").iterdir())
    assert store.find() is None


def test_what_another_process_has_kept_is_not_written_again(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(tensor_file, "write", refuse)
    stored.store.put(stored.kept)


def on_gpu(chosen: FusedConfig, capability: tuple[int, int] = (9, 0)) -> FusedConfig:
    return dataclasses.replace(chosen, capability=capability)


def test_each_kind_of_gpu_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = offer.choose(fp8_options(save("bert", tmp_path)))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    keys = [cache._key(one, "fp8") for one in (chosen, on_gpu(chosen), on_gpu(chosen, (8, 9)))]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    keys.append(cache._key(on_gpu(chosen), "fp8"))
    assert len(set(keys)) == 4
    assert cache._key(on_gpu(chosen), "fp8") == keys[-1]


@pytest.mark.parametrize(
    "edit",
    [
        lambda folder: os.utime(folder / "model.safetensors", (1, 1)),
        lambda folder: change(folder / "config.json", layer_norm_eps=1e-3),
        lambda folder: write(folder / "tokenizer.json", {}),
        {"pooling": "cls"},
        {"max_seqlen": 40},
        {"dtype": "bfloat16"},
    ],
    ids=["weights", "config", "tokenizer", "pooling", "length", "dtype"],
)
def test_what_changes_rows_makes_another_model(edit: Any, tmp_path: Path) -> None:
    folder = save("bert", tmp_path)
    before = cache._key(offer.choose(fp8_options(folder)), "fp8")
    assert before not in (None, cache._key(offer.choose(fp8_options(folder)), "auto"))
    if not isinstance(edit, dict):
        edit(folder)
    asked = edit if isinstance(edit, dict) else {}
    assert cache._key(offer.choose(fp8_options(folder, **asked)), "fp8") != before


@pytest.mark.parametrize(
    "changes",
    [
        {"do_lower_case": True},
        {"config": {"is_causal": False}},
        {"heads": (SequenceScores(labels=("a", "b")),)},
        {"activation": Activation.SOFTMAX},
        {"template": PairTemplate(parts=("{query}", "{document}"), instruction="")},
        {"prompts": {"query": "query: "}, "default_prompt_name": "query"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_folder_understood_in_another_way_is_another_model(changes: dict[str, Any], tmp_path: Path) -> None:
    chosen = offer.choose(fp8_options(save("bert", tmp_path)))
    folder = dataclasses.replace(chosen.folder, **changes)
    assert cache._key(dataclasses.replace(chosen, folder=folder), "fp8") != cache._key(chosen, "fp8")


@pytest.mark.parametrize(
    "head",
    [
        TokenWeights(unused_ids=()),
        TokenVectors(steps=(Dense(folder="1_Dense", in_features=32, out_features=8),), dimensions=8),
    ],
    ids=["weights of tokens", "vectors of tokens"],
)
def test_a_head_with_another_file_is_another_model(head: TokenWeights | TokenVectors, tmp_path: Path) -> None:
    chosen = offer.choose(fp8_options(save("bert", tmp_path)))
    chosen = dataclasses.replace(chosen, folder=dataclasses.replace(chosen.folder, heads=(head,)))
    (tmp_path / "1_Dense").mkdir()
    for name in (TOKEN_WEIGHTS_FILE, "1_Dense/model.safetensors"):
        shutil.copy(tmp_path / "model.safetensors", tmp_path / name)
    before = cache._key(chosen, "fp8")
    own = TOKEN_WEIGHTS_FILE if isinstance(head, TokenWeights) else "1_Dense/model.safetensors"
    os.utime(tmp_path / own, (1, 1))
    assert cache._key(chosen, "fp8") != before


def test_an_entry_of_another_format_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = offer.choose(fp8_options(save("bert", tmp_path)))
    before = cache._key(chosen, "fp8")
    monkeypatch.setattr(cache, "_FORMAT", cache._FORMAT + 1)
    assert cache._key(chosen, "fp8") != before


def test_a_file_that_can_not_be_read_is_the_readers_affair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object, **__: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    given = fp8_options(save("bert", tmp_path / "model"), tmp_path / "cache")
    monkeypatch.setattr(fingerprint, "key", unreadable)
    assert cache_for(offer.choose(given), given) is None


class Reached(Exception):
    """The call that was waited for."""


@pytest.mark.parametrize(("is_gpu", "has_folder"), [(True, True), (True, False), (False, True)])
def test_kernels_are_kept_where_there_are_any(
    is_gpu: bool, has_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Path] = []
    choose: Callable[[LoadOptions], FusedConfig] = offer.choose

    def stop(*_: object, **__: object) -> NoReturn:
        raise Reached

    monkeypatch.setattr(offer, "choose", lambda given: on_gpu(choose(given)) if is_gpu else choose(given))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(loading, "cache_for", stop)
    monkeypatch.setattr(
        loading,
        "keep_kernels",
        lambda folder, environment: used.append(folder) if environment is os.environ else None,
    )
    given = fp8_options(save("bert", tmp_path / "model"), tmp_path / "cache" if has_folder else None)
    with pytest.raises(Reached):
        loading.load(Phases(), name="m", reason="", options=given)
    assert used == ([tmp_path / "cache"] if is_gpu and has_folder else [])

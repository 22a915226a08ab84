"""Which engine is chosen for a device, and what auto does on a GPU, with engines that stand in for the real ones."""

import gc
import importlib
import logging
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from engine import registry
from engine.messages import LoadOptions
from engine.types import DeviceTrouble, Engine, ModelError, OnStage, RowsDiffer

pytestmark = pytest.mark.holds("Engines on a GPU")

GPU = "cuda:0"
NO_FP8_ON_THE_CPU = (
    "--quantization fp8 is not for the CPU; int8 is, by openvino; --engine fused does it there, slowly, for checks"
)


class Loader:
    """Stands in for the modules of all engines: loads nothing, and fails as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **failures: Exception) -> None:
        self.tried: list[str] = []
        self.least_tried: list[int] = []
        self.reason = ""
        self._failures = failures
        monkeypatch.setattr(importlib, "import_module", self._module)

    def _module(self, path: str) -> Any:
        def load(*, name: str, reason: str, options: LoadOptions, on_stage: OnStage) -> str:
            on_stage("weights")
            engine = next(name for name, row in registry.ENGINES.items() if row.module == path).replace("-", "_")
            self.tried.append(engine)
            self.least_tried.append(options.least_tried)
            self.reason = reason
            if engine in self._failures:
                raise self._failures[engine]
            return engine

        return SimpleNamespace(load=load)


def load(device: str) -> Engine:
    engine, reason = registry.choose("auto", kind=device.partition(":")[0])
    return registry.load(engine, name="m", reason=reason, options=LoadOptions(device=device))


@pytest.mark.parametrize(("device", "first"), [(GPU, "fused"), ("cuda:3", "fused"), ("cpu", "openvino")])
def test_auto_takes_the_first_for_its_device(device: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(monkeypatch)
    load(device)
    assert loader.tried == [first]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModelError("it has no recipe for 'gpt2'"), "it has no recipe for 'gpt2'"),
        (ModuleNotFoundError(name="triton"), "needs triton, which is not installed: pip install 'embedline[cuda]'"),
    ],
)
def test_auto_goes_on_to_transformers_on_a_gpu(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loader = Loader(monkeypatch, fused=error)
    with caplog.at_level(logging.WARNING):
        load(GPU)
    assert loader.tried == ["fused", "transformers"]
    assert "on a GPU; not fused: " in loader.reason
    assert words in loader.reason
    assert words in caplog.text


def test_auto_passes_over_engines_that_keep_no_adapter_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(monkeypatch)
    options = LoadOptions(device=GPU, loras=(("law", "/adapters/law"),))
    registry.load(registry.AUTO, name="m", reason="auto", options=options)
    assert loader.tried == ["transformers"]
    assert "not fused: --lora is not for the fused engine" in loader.reason
    for engine in ("fused", "tensorrt-llm", "static"):
        with pytest.raises(ModelError, match=f"--lora is not for the {engine} engine.* serve the adapter's folder"):
            registry.load(engine, name="m", reason="asked", options=options)


def test_stages_are_told_with_the_engine_that_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    Loader(monkeypatch, fused=ModelError("no"))
    told: list[str] = []
    registry.load("auto", name="m", reason="", options=LoadOptions(device=GPU), on_stage=told.append)
    assert told == ["fused: import", "fused: weights", "transformers: import", "transformers: weights"]


def test_never_fused_on_a_cpu_that_was_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(monkeypatch, openvino=ModelError("no"), transformers=ModelError("neither"))
    with pytest.raises(ModelError, match=r"^--engine auto .* on the CPU: openvino: no; transformers: neither$"):
        load("cpu")
    assert loader.tried == ["openvino", "transformers"]


def test_where_none_fits_each_ones_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(monkeypatch, fused=ModuleNotFoundError(name="triton"), transformers=DeviceTrouble("cuda:0 is full"))
    with pytest.raises(ModelError) as refused:
        load(GPU)
    assert loader.tried == ["fused", "transformers"]
    assert str(refused.value) == (
        "--engine auto finds no engine that can serve it on a GPU: fused: the fused engine needs triton, which is not "
        "installed: pip install 'embedline[cuda]'; transformers: cuda:0 is full"
    )


def test_trouble_of_the_device_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(monkeypatch, fused=DeviceTrouble("3 GB are free: --max-input-length 512 fits"))
    with pytest.raises(ModelError, match=r"on a GPU: fused: 3 GB are free: --max-input-length 512 fits$"):
        load(GPU)
    assert loader.tried == ["fused"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "; free memory there, or lower --max-batch-tok"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "; --devices may name another, or cpu"),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "fused"])
def test_trouble_of_the_device_is_known_by_its_words(
    engine: str, error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = Loader(monkeypatch, fused=error)
    with pytest.raises(ModelError) as refused:
        registry.load(engine, name="m", reason="", options=LoadOptions(device=GPU))
    assert loader.tried == ["fused"]
    assert f"cuda:0 fails the fused engine (RuntimeError: {error})" in str(refused.value)
    assert words in str(refused.value)


def test_our_own_mistakes_are_not_taken_for_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(monkeypatch, fused=KeyError(512))
    with pytest.raises(KeyError):
        load(GPU)
    assert loader.tried == ["fused"]


class Fails:
    """Stands in for the engines: the first holds a model when it fails, the next looks whether that is still there."""

    def __init__(self) -> None:
        self.models: weakref.WeakSet[SimpleModel] = weakref.WeakSet()
        self.num_left: list[int] = []

    def load(self, **_: Any) -> str:
        self.num_left.append(len(self.models))
        if len(self.num_left) == 2:
            return "engine"
        model = SimpleModel()
        self.models.add(model)
        model.graphs = [model]  # such a ring goes when the garbage is collected, and not before
        raise ModelError(f"no for {len(model.graphs)}")


class SimpleModel:
    graphs: list["SimpleModel"]


def test_what_failed_is_given_back_before_the_next_is_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fails = Fails()
    monkeypatch.setattr(importlib, "import_module", lambda _: fails)
    gc.disable()
    try:
        load(GPU)
    finally:
        gc.enable()
    assert fails.num_left == [0, 0]


def test_the_gpus_memory_is_given_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[bool] = []
    cuda = SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: emptied.append(True))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    registry.release_memory()
    assert emptied
    monkeypatch.delitem(sys.modules, "torch")
    registry.release_memory()  # an engine that is not installed leaves nothing


@pytest.mark.parametrize(
    ("asked", "quantization", "device", "chosen"),
    [
        ("auto", "auto", GPU, "auto"),
        ("auto", "none", GPU, "auto"),
        ("auto", "fp8", GPU, "fused"),
        ("fused", "fp8", GPU, "fused"),
        ("fused", "fp8", "cpu", "fused"),
        ("fused", "auto", "cpu", "fused"),
        ("transformers", "auto", GPU, "transformers"),
        ("auto", "auto", "cpu", "auto"),
        ("auto", "int8", "cpu", "openvino"),
        ("openvino", "int8", "cpu", "openvino"),
        ("fake", "fp8", "cpu", "fake"),
    ],
)
def test_which_engine_is_chosen(asked: str, quantization: str, device: str, chosen: str) -> None:
    engine, reason = registry.choose(asked, quantization=quantization, kind=device.partition(":")[0])
    assert engine == chosen
    assert f"--engine {asked}" in reason


@pytest.mark.parametrize(
    ("asked", "quantization", "device", "message"),
    [
        ("auto", "int8", GPU, "--quantization int8 is not for a GPU; fp8 is, by fused"),
        ("transformers", "fp8", GPU, "--quantization fp8 is not for --engine transformers; fused does it"),
        ("fused", "int8", "cpu", "--quantization int8 is not for --engine fused; openvino does it"),
        ("openvino", "fp8", "cpu", NO_FP8_ON_THE_CPU),
        ("auto", "fp8", "cpu", NO_FP8_ON_THE_CPU),
        ("transformers", "int8", "cpu", "--quantization int8 is not for --engine transformers; openvino does it"),
        ("cuda", "none", "cpu", f"--engine cuda is not one of auto, {', '.join(registry.ENGINES)}"),
    ],
)
def test_what_no_engine_does(asked: str, quantization: str, device: str, message: str) -> None:
    with pytest.raises(ModelError) as refused:
        registry.choose(asked, quantization=quantization, kind=device.partition(":")[0])
    assert str(refused.value) == message


def test_after_wrong_rows_the_next_engine_tries_as_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(monkeypatch, openvino=RowsDiffer("no", 1024))
    load("cpu")
    assert loader.tried == ["openvino", "transformers"]
    assert loader.least_tried == [0, 1024]

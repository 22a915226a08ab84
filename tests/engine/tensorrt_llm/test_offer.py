"""What is decided before tensorrt_llm is imported, of what other modules' tests do not ask."""

from pathlib import Path
from typing import Any

import pytest

from engine.machine.cuda_driver import Gpu
from engine.messages import LoadOptions
from engine.tensorrt_llm.offer import TensorRTLLMConfig, choose
from engine.tensorrt_llm.planning import package
from engine.tensorrt_llm.quantize import cached
from engine.types import ModelError
from tests.engine.engines import changed
from tests.engine.tensorrt_llm.header_models import write_chain, write_model


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "find", lambda: "1.4.0rc1")


def chosen(folder: Path, **others: Any) -> TensorRTLLMConfig:
    gpu = Gpu(0, "NVIDIA H100", (9, 0), 80 << 30)
    fixed = LoadOptions(path=str(folder), device=gpu.device, gpu=gpu, quantization="auto", pooling="last-token")
    return choose(changed(fixed, **others))


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_bfloat16_where_nothing_else_is_asked_for(model_type: str, tmp_path: Path) -> None:
    """Whatever config.json says that the weights are stored in."""
    write_model(tmp_path, model_type=model_type, torch_dtype="float32")
    assert chosen(tmp_path).dtype == "bfloat16"


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_float16(model_type: str, tmp_path: Path) -> None:
    write_model(tmp_path, model_type=model_type)
    assert chosen(tmp_path, dtype="float16").dtype == "float16"


@pytest.mark.parametrize("model_class", ["embedline", "stock"])
def test_an_architecture_with_a_kernel_for_bfloat16_alone(model_class: str, tmp_path: Path) -> None:
    write_chain(tmp_path)
    write_model(tmp_path)
    with pytest.raises(
        ModelError, match=r"^--dtype float16 is not for qwen3 in the tensorrt-llm engine, .* leave it out$"
    ):
        chosen(tmp_path, dtype="float16", tensorrt_llm_model_class=model_class)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("a library\nfails"), "^the FP8 copy of the model can't be made: RuntimeError: a library fails$"),
        (ModelError("no cache"), "^no cache$"),
    ],
)
def test_a_copy_that_fails_is_one_line(
    error: Exception, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object, *, cache_dir: str | None) -> None:
        raise error

    monkeypatch.setattr(cached, "block_fp8", fail)
    write_model(tmp_path)
    with pytest.raises(ModelError, match=message):
        chosen(tmp_path, quantization="fp8")

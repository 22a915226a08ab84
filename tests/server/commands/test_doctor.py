"""`embedline doctor`: what it says of this machine and others, of models that engines know and do not; exit codes."""

import dataclasses
import re
from pathlib import Path

import pytest

from engine import registry
from engine.machine.cuda_driver import Gpu
from engine.tensorrt_llm.planning.quantization import BLOCKS
from server.commands.doctor import doctor
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor import model_plan
from tests.engine.folder_files import change
from tests.engine.model.detection import shapes
from tests.engine.tensorrt_llm import quantized_models
from tests.engine.tiny_models import save
from tests.server.commands.doctor_runs import GIB, H100, Computer, Examined, able, reasons

T4 = Gpu(0, "Tesla T4", (7, 5), 15 * GIB)

pytestmark = pytest.mark.usefixtures("computer")


def test_on_an_h100(examined: Examined, computer: Computer, qwen3: Path) -> None:
    computer.has(H100)

    code, found = examined(model_id=qwen3, pooling="last-token")

    assert (code, found["reason"]) == (0, "--engine auto takes fused, on cuda:0")
    assert found["machine"]["gpus"] == [
        "cuda:0 (NVIDIA H100, compute capability 9.0), 81,920 MiB: bfloat16 and FP8",
    ]
    assert found["engines"]["transformers"]["devices"] == ["cuda:0"]
    assert found["engines"]["openvino"]["devices"] == ["cpu"]


def test_with_the_library(examined: Examined, computer: Computer, qwen3: Path) -> None:
    computer.has(H100)
    computer.has_library()

    code, found = examined(model_id=qwen3, pooling="last-token")

    assert (code, found["reason"]) == (0, "--engine auto takes fused, on cuda:0")
    assert found["engines"]["tensorrt-llm"]["can_serve"]


def test_the_gpus_that_were_asked_for_count(examined: Examined, computer: Computer, qwen3: Path) -> None:
    computer.has(H100, dataclasses.replace(T4, index=1))

    _, of_all = examined(model_id=qwen3, pooling="last-token", devices="cuda")
    _, of_one = examined(model_id=qwen3, pooling="last-token", devices="cuda:0")

    assert "Tesla T4" in reasons(of_all, "tensorrt-llm")
    assert "Tesla T4" not in reasons(of_one, "tensorrt-llm")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"dtype": "float32"}, "--dtype float32 is not for --engine tensorrt-llm"),
        ({"dtype": "float16"}, "--dtype float16 is not for qwen3"),
        ({"quantization": "none"}, "--quantization none asks for weights that are not"),
    ],
)
def test_flags_that_the_library_can_not_follow(
    examined: Examined, computer: Computer, qwen3: Path, asked: dict[str, str], words: str
) -> None:
    computer.has(H100)
    if "quantization" in asked:
        quantized_models.write(qwen3, quantized_models.quantized(BLOCKS), quantized_models.BLOCKWISE)

    _, found = examined(model_id=qwen3, pooling="last-token", **asked)

    assert words in reasons(found, "tensorrt-llm")


def test_a_reward_model_is_for_the_librarys_own_class(examined: Examined, computer: Computer, qwen3: Path) -> None:
    name = "Qwen2ForRewardModel"
    computer.has(H100)
    code = {"AutoModel": f"modeling_qwen2_rm.{name}"}
    change(qwen3 / "config.json", model_type="qwen2", architectures=[name], auto_map=code)
    stock = {"engine": "tensorrt-llm", "tensorrt_llm_model_class": "stock"}

    _, found = examined(model_id=qwen3)
    assert f"needs the code of {name}" in found["reason"]
    _, found = examined(model_id=qwen3, **stock)
    assert "score.0" in reasons(found, "tensorrt-llm")
    assert f"brings code for {name}, which is never run" in reasons(found, "transformers")


def test_a_library_that_is_too_old(examined: Examined, computer: Computer, qwen3: Path) -> None:
    computer.has_library("1.2.1")

    _, found = examined(model_id=qwen3, pooling="last-token")

    assert "tensorrt_llm 1.2.1 is too old" in reasons(found, "tensorrt-llm")


def test_a_gpu_without_bfloat16(examined: Examined, computer: Computer) -> None:
    computer.has(T4)

    code, found = examined()

    assert (code, found["engine"]) == (0, "openvino")
    assert "Tesla T4, compute capability 7.5) has no bfloat16" in reasons(found, "fused")
    assert "neither bfloat16 nor FP8" in found["machine"]["gpus"][0]


def test_a_torch_without_cuda(examined: Examined, computer: Computer, monkeypatch: pytest.MonkeyPatch) -> None:
    computer.has(H100)
    monkeypatch.setattr(model_plan, "_torch_version", lambda: "2.13.0+cpu")

    _, found = examined()

    assert found["machine"]["gpus"]  # the driver sees it all the same
    assert reasons(found, "fused") == "it needs a GPU: there is a GPU, but torch 2.13.0+cpu is built without CUDA"


@pytest.mark.parametrize(
    ("model", "why_not"),
    [
        ({}, ""),
        ({"model_type": "distilbert"}, "torch and transformers not installed: .* this model is not converted without"),
        ({"model_type": "distilbert", "compiled_model": "/"}, ""),
    ],
    ids=["a BERT", "another", "compiled"],
)
def test_what_is_served_without_torch(
    examined: Examined, computer: Computer, model: dict[str, str], why_not: str, tmp_path: Path
) -> None:
    computer.lacks |= {"torch", "transformers"}
    folder = save(model.pop("model_type", "bert"), tmp_path / "model")
    shapes.tokenizer(folder)

    code, found = examined(model_id=folder, pooling="mean", **model)

    assert (code, found["engine"]) == ((1, None) if why_not else (0, "openvino"))
    assert re.search(why_not, reasons(found, "openvino"))
    assert bool(reasons(found, "openvino")) == bool(why_not)
    if not why_not:
        assert (
            "it serves BERT's and RoBERTa's kinds of models and compiled ones"
            in found["engines"]["openvino"]["notes"][0]
        )


@pytest.mark.holds("TensorRT-LLM")
def test_a_model_that_is_not_here_is_not_fetched(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", str(tmp_path))
    settings = Settings(models=(ModelSettings(model_id="an/unknown-model"),), huggingface_hub_cache=str(tmp_path))

    assert doctor(settings, as_json=False) == 1

    shown = capsys.readouterr().out
    assert "it is not on this machine, or not all of it; `embedline inspect an/unknown-model` fetches it" in shown
    assert "engines, by this machine alone" in shown
    assert re.search(r"openvino +can run, on cpu", shown)


def test_a_folder_that_is_no_model(examined: Examined, tmp_path: Path) -> None:
    code, found = examined(model_id=tmp_path)

    assert (code, found["engine"]) == (1, None)
    assert found["model"]["trouble"] == found["reason"] != ""


def test_weights_that_few_can_read(examined: Examined, computer: Computer, qwen3: Path) -> None:
    computer.has(H100)
    change(qwen3 / "config.json", quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})

    _, found = examined(model_id=qwen3, pooling="last-token")

    assert "only the fused engine reads" in reasons(found, "transformers")
    assert reasons(found, "fused") == ""


def test_a_reranker_is_for_fused(examined: Examined, computer: Computer, tmp_path: Path) -> None:
    computer.has(H100)
    shapes.cross_encoder(tmp_path / "model")

    _, found = examined(model_id=tmp_path / "model")

    assert reasons(found, "fused") == ""
    assert found["engine"] == "fused"


def test_a_table_of_static_embeddings(examined: Examined, tmp_path: Path) -> None:
    shapes.static(tmp_path / "model")

    code, found = examined(model_id=tmp_path / "model")

    assert (code, found["engine"], able(found)) == (0, "static", {"static"})
    assert "table of static embeddings" in reasons(found, "openvino")


def test_an_architecture_that_no_table_has(examined: Examined, tmp_path: Path) -> None:
    shapes.embedding(tmp_path / "model")
    change(tmp_path / "model" / "config.json", model_type="blenderbot")

    _, found = examined(model_id=tmp_path / "model")

    assert "it may serve it" in found["engines"]["transformers"]["notes"][0]
    assert "does not know the architecture 'blenderbot'" in reasons(found, "fused")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"engine": "fused"}, "--engine fused"),
        ({"engine": "transformers", "quantization": "int8"}, "openvino does it"),
        ({"devices": "cuda"}, "there is no CUDA driver here"),
        ({"default_prompt_name": "nobody"}, "--default-prompt-name"),
        ({"engine": "nobody"}, "--engine nobody is not one of"),
    ],
    ids=str,
)
def test_what_was_asked_for_can_not_be(examined: Examined, asked: dict[str, str], why: str) -> None:
    code, found = examined(**asked)

    assert (code, found["engine"]) == (1, None)
    assert why in found["reason"]


def test_auto_finds_none_and_another_can_be_named(
    examined: Examined, computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "tried_by_auto", lambda kind: {"fused": True})

    code, found = examined()

    assert (code, found["engine"], found["can_serve"]) == (0, None, True)
    assert found["reason"].endswith("; --engine openvino or transformers can serve it")


def test_the_fake_engine_serves_anything(examined: Examined) -> None:
    code, found = examined(engine="fake")

    assert (code, found["engine"]) == (0, "fake")

"""Devices, engine and compute type of each model, decided once beside GPUs that there may or may not be."""

import importlib.metadata
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.machine import cuda_driver
from engine.machine.cuda_driver import Cuda, Gpu
from engine.model.tasks import Task
from engine.types import ModelError
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import MAX_PROCESSES, Settings
from server.supervisor.model_plan import ModelPlan, find_cuda, plan_models
from server.supervisor.topology import tokenizer_spec
from tests.engine.folder_files import write
from tests.engine.model.detection import shapes
from tests.server_e2e.expected import minilm
from tokenizer_pool.messages import Truncation

pytestmark = pytest.mark.holds("Engines on a GPU")

GIB = 1 << 30
H200 = Gpu(0, "NVIDIA H200", (9, 0), 140 * GIB)
T4 = Gpu(1, "Tesla T4", (7, 5), 15 * GIB)


class Driver:
    """Stands in for the machine's, and counts how often it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, torch: str = "2.11.0") -> None:
        self.cuda = Cuda(why_none="there is no CUDA driver here")
        self.num_asked = 0
        monkeypatch.setattr(cuda_driver, "find", self._find)
        monkeypatch.setattr(importlib.metadata, "version", lambda name: {"torch": torch}[name])

    def _find(self) -> Cuda:
        self.num_asked += 1
        return self.cuda


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def model(name: str = "m", **others: Any) -> ModelSettings:
    return ModelSettings(served_model_name=name, **others)


def plan(*models: ModelSettings, **others: Any) -> list[ModelPlan]:
    return plan_models(Settings(models=models, **others))


def test_without_a_gpu_everything_is_as_ever(driver: Driver) -> None:
    (planned,) = plan(model())
    assert (planned.engine, planned.devices.names) == ("auto", ("cpu",))
    assert planned.reason == "--engine auto: the first of openvino, transformers that can serve this model on the CPU"
    assert planned.devices.reason == "--devices auto: there is no CUDA driver here"


def test_a_gpu_is_taken_and_its_engines_tried(driver: Driver) -> None:
    driver.cuda = Cuda((H200, T4))
    (planned,) = plan(model())
    assert (planned.engine, planned.devices.names) == ("auto", ("cuda:0",))
    assert planned.reason.startswith("--engine auto: the first of fused, transformers that can serve")


def test_fp8_is_the_fused_engines(driver: Driver) -> None:
    driver.cuda = Cuda((H200,))
    (planned,) = plan(model(quantization="fp8"))
    assert planned.engine == "fused"


def test_what_is_named_is_not_replaced(driver: Driver) -> None:
    driver.cuda = Cuda((H200,))
    assert plan(model(devices="cpu"))[0].devices.names == ("cpu",)
    assert plan(model(engine="openvino"))[0].devices.names == ("cpu",)
    assert plan(model(engine="transformers"))[0].engine == "transformers"


def test_the_driver_is_asked_once_and_only_where_it_matters(driver: Driver) -> None:
    plan(model("a", engine="fake"), model("b", devices="cpu"), model("c", engine="fake", devices="cuda:3"))
    assert driver.num_asked == 0
    plan(model("a"), model("b"), model("c", engine="transformers"))
    assert driver.num_asked == 1


@pytest.mark.parametrize(
    ("torch", "why"), [("2.13.0+cpu", "2.13.0+cpu is built without CUDA"), ("", "is not installed: pip install")]
)
def test_a_torch_without_cuda_or_none(torch: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, torch=torch)
    driver.cuda = Cuda((H200,))
    (planned,) = plan(model())
    assert planned.devices.names == ("cpu",)
    assert f"there is a GPU, but torch {why}" in planned.devices.reason
    with pytest.raises(ModelError, match=r"^--devices cuda:0: there is a GPU, but torch"):
        plan(model(devices="cuda:0"))


def test_of_another_interpreters_torch_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, torch="2.13.0+cpu")
    driver.cuda = Cuda((H200,))
    assert find_cuda(Settings(engine_python=sys.executable)).gpus == ()
    assert find_cuda(Settings(engine_python="/bin/sh")).gpus == (H200,)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"devices": "cuda:1"}, "--devices: cuda:1 (Tesla T4, compute capability 7.5) has no bfloat16"),
        ({"devices": "cuda:2"}, "--devices cuda:2"),
        ({"devices": "cuda:0", "quantization": "int8"}, "--devices cuda:0: --quantization int8 is for a CPU"),
        ({"devices": "cuda:0", "engine": "transformers", "quantization": "fp8"}, "--quantization fp8 is not for"),
        ({"devices": "cpu", "quantization": "fp8"}, "--quantization fp8 is not for the CPU"),
        ({"devices": "cpu", "engine": "fused", "dtype": "float16"}, "--dtype float16 is not for the fused engine"),
        ({"devices": "cuda:0", "engine": "steam"}, "--engine steam"),
    ],
)
def test_what_is_refused(asked: dict[str, str], words: str, driver: Driver) -> None:
    driver.cuda = Cuda((H200, T4))
    with pytest.raises(ModelError) as refused:
        plan(model(**asked))
    assert str(refused.value).startswith(words)


def fp8_folder(tmp_path: Path, **config: Any) -> str:
    """A copy of the packaged model that says of its weights that they are quantized."""
    folder = tmp_path / "model"
    shutil.copytree(minilm(), folder)
    stored = {**json.loads((folder / "config.json").read_text()), "quantization_config": config}
    (folder / "config.json").write_text(json.dumps(stored))
    return str(folder)


@pytest.mark.parametrize("engine", ["auto", "openvino", "transformers"])
def test_fp8_weights_are_refused_before_anything_starts(engine: str, driver: Driver, tmp_path: Path) -> None:
    folder = fp8_folder(tmp_path, quant_method="fp8", weight_block_size=[128, 128])
    with pytest.raises(ModelError, match=r"FP8 \(fp8, scales per block\); only the fused engine reads them: on a GPU"):
        plan(model(model_id=folder, engine=engine, devices="cpu"))


def test_fp8_weights_are_for_the_fused_engine(driver: Driver, tmp_path: Path) -> None:
    folder = fp8_folder(tmp_path, quant_method="fp8")
    (named,) = plan(model(model_id=folder, engine="fused", devices="cpu"))
    driver.cuda = Cuda((H200,))
    (tried,) = plan(model(model_id=folder))
    assert named.stored == tried.stored
    assert named.stored is not None
    assert plan(model())[0].stored is None


@pytest.mark.parametrize("engine", ["auto", "openvino", "fused", "transformers"])
def test_other_quantized_weights_are_refused_before_anything_starts(
    engine: str, driver: Driver, tmp_path: Path
) -> None:
    driver.cuda = Cuda((H200,))
    with pytest.raises(ModelError, match=r"quantized by awq, which can't be read; take the model's plain weights"):
        plan(model(model_id=fp8_folder(tmp_path, quant_method="awq"), engine=engine))


def test_static_embeddings_have_an_engine_of_their_own(driver: Driver, tmp_path: Path) -> None:
    shapes.static(tmp_path)
    driver.cuda = Cuda((H200,))
    (planned,) = plan(model(model_id=str(tmp_path)))
    assert (planned.engine, planned.devices.names) == ("static", ("cpu",))
    assert tokenizer_spec(planned).folder == str(tmp_path / "0_StaticEmbedding")
    with pytest.raises(ModelError, match="--engine transformers does not serve static embeddings; static does"):
        plan(model(model_id=str(tmp_path), engine="transformers"))
    with pytest.raises(ModelError, match="--devices must be cpu for static embeddings"):
        plan(model(model_id=str(tmp_path), devices="cuda:0"))


def test_the_task_is_each_models_own(driver: Driver, tmp_path: Path) -> None:
    shapes.classifier(tmp_path)
    found = plan(model("a", model_id=str(tmp_path)), model("b", model_id=str(tmp_path), task="embed"))
    assert [planned.folder.task for planned in found] == [Task.CLASSIFY, Task.EMBED]
    with pytest.raises(ModelError, match="--task rerank: the model is not for this"):
        plan(model(model_id=str(tmp_path), task="rerank"))


def test_the_tokenizer_is_told_what_the_folder_says(driver: Driver, tmp_path: Path) -> None:
    shapes.qwen3_reranker(tmp_path / "reranker")
    (planned,) = plan(model(model_id=str(tmp_path / "reranker")))
    assert planned.folder.template is not None
    assert tokenizer_spec(planned).template == planned.folder.template.parts
    assert not tokenizer_spec(planned).marks_prompts
    shapes.embedding(tmp_path / "embedder")
    write(tmp_path / "embedder" / "p1" / "config.json", {"pooling_mode": "cls", "include_prompt": False})
    assert tokenizer_spec(*plan(model(model_id=str(tmp_path / "embedder")))).marks_prompts


def test_a_tokenizer_of_another_model(driver: Driver, tmp_path: Path) -> None:
    shapes.embedding(tmp_path)
    shapes.tokenizer(tmp_path, last_id=32)
    with pytest.raises(ModelError, match=r"they are not of the same model$"):
        plan(model(model_id=str(tmp_path)))
    assert plan(model(model_id=str(tmp_path), engine="fake"))


def test_the_engines_of_all_models_have_an_upper_bound() -> None:
    half = ",".join(["cpu"] * (MAX_PROCESSES // 2))
    models = [model(name, engine="fake", devices=half) for name in "ab"]
    assert sum(len(planned.devices.names) for planned in plan(*models)) == MAX_PROCESSES
    with pytest.raises(SettingsError, match=f"--devices: all models together may have at most {MAX_PROCESSES}"):
        plan(*models, model("c", engine="fake"))


def test_batch_managers_are_no_more_than_engines(driver: Driver) -> None:
    assert plan(model(engine="fake", devices="a,b"), batch_managers=2)
    with pytest.raises(SettingsError, match="--batch-managers"):
        plan(model(engine="fake", devices="a,b"), batch_managers=3)
    driver.cuda = Cuda((H200, H200))
    assert plan(model(devices="cuda"), batch_managers=2)  # how many they are is known only now


@pytest.mark.holds("Prompts")
def test_prompts_of_a_card_are_chosen_as_those_of_files(driver: Driver, tmp_path: Path) -> None:
    folder = tmp_path / "e5-base-v2"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(minilm() / name, folder)
    asked = {"model_id": str(folder), "engine": "fake"}
    assert [one.default_prompt for one in plan(model(**asked), model("n", default_prompt_name="query", **asked))] == [
        "",
        "query: ",
    ]


def test_the_end_that_is_cut_off_is_that_of_the_files(driver: Driver, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(minilm() / name, tmp_path)
    write(tmp_path / "tokenizer_config.json", {"truncation_side": "left"})
    asked = {"model_id": str(tmp_path), "engine": "fake"}
    planned = plan(model(**asked), model("n", auto_truncate=False, **asked))
    assert [one.truncation for one in planned] == [Truncation.LEFT, Truncation.NONE]
    write(tmp_path / "tokenizer_config.json", {"truncation_side": "both"})
    with pytest.raises(ModelError, match="truncation_side in tokenizer_config"):
        plan(model(**asked))


def test_special_tokens_of_unknown_code_are_refused(driver: Driver, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(minilm() / name, tmp_path)
    write(tmp_path / "tokenizer_config.json", {"auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]}})
    with pytest.raises(ModelError, match=r"names code, own\.OwnTokenizer, which is not run here"):
        plan(model(model_id=str(tmp_path), engine="fake"))

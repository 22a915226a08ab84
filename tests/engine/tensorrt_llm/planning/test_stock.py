"""Upstream's own classes: for which models, and what is refused because they would be wrong about it."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.machine.cuda_driver import Cuda, Gpu
from engine.model import model_folder
from engine.model.model_folder import ModelFolder
from engine.model.tasks import Activation, Task
from engine.tensorrt_llm.planning.checkpoint import classify
from engine.tensorrt_llm.planning.plan import KNOWN_CLASSES, ModelFlags, plan, stock
from engine.types import ModelError, OutputKind
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.model_plan import ModelPlan, plan_model
from tests.engine import engines
from tests.engine.tensorrt_llm.header_models import (
    CONFIG,
    HIDDEN,
    Headers,
    plain,
    write_chain,
    write_headers,
    write_model,
)
from tests.engine.tiny_models import HIDDEN_SIZE, SCORING_SEQUENCES, save_whole

REWARD: dict[str, Any] = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForRewardModel"],
    "auto_map": {"AutoModel": "modeling_qwen2_rm.Qwen2ForRewardModel"},
}
LAYERS: Headers = {
    "score.0.weight": ("BF16", (HIDDEN, HIDDEN)),
    "score.0.bias": ("BF16", (HIDDEN,)),
    "score.2.weight": ("BF16", (1, HIDDEN)),
    "score.2.bias": ("BF16", (1,)),
}
CHAIN = ("Transformer", "Pooling", "Normalize")


def reward_folder(path: Path, tensors: Headers = LAYERS, **config: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG | REWARD | config))
    write_headers(path / "model.safetensors", plain(prefix="model.") | tensors)
    return path


def reward_model(path: Path, tensors: Headers = LAYERS, **config: Any) -> ModelFolder:
    return model_folder.read(reward_folder(path, tensors, **config), known_classes=KNOWN_CLASSES)


def embedder(path: Path, kinds: tuple[str, ...] = CHAIN, **config: Any) -> ModelFolder:
    """A Qwen3 with the files of sentence-transformers."""
    write_model(path, **config)
    write_chain(path, kinds)
    return model_folder.read(path)


def classifier(path: Path, **config: Any) -> ModelFolder:
    return model_folder.read(save_whole("bert", path, SCORING_SEQUENCES, num_labels=3, **config))


def refused(folder: ModelFolder) -> str:
    return engines.refusal(lambda: stock(folder))


def planned(path: Path, engine: str, model_class: str) -> ModelPlan:
    model = ModelSettings(model_id=str(path), engine=engine, devices="cuda", tensorrt_llm_model_class=model_class)
    gpu = Gpu(0, "NVIDIA H200", (9, 0), 1 << 37)
    return plan_model(model, Settings(), cuda=lambda: Cuda((gpu,)))


def test_qwen3_embeddings(tmp_path: Path) -> None:
    model_class = stock(embedder(tmp_path))

    assert model_class.model_kwargs == {"architectures": ["Qwen3ForTextEmbedding"]}
    assert (model_class.family, model_class.output, model_class.num_outputs) == (None, OutputKind.POOLED, HIDDEN)


def test_qwen3_embeddings_of_another_kind_are_refused(tmp_path: Path) -> None:
    """Its rows are scaled to length 1 and of a causal model, whatever the folder says."""
    assert "leave the flag out" in refused(embedder(tmp_path / "raw", CHAIN[:2]))
    assert "leave the flag out" in refused(embedder(tmp_path / "both", is_causal=False))


def test_bert_scores(tmp_path: Path) -> None:
    folder = classifier(tmp_path)
    model_class = stock(folder)

    assert model_class.model_kwargs == {"architectures": ["BertForSequenceClassification"]}
    assert (model_class.family, model_class.output, model_class.num_outputs) == (None, OutputKind.LOGITS, 3)
    assert model_class.takes_token_types
    assert classify(folder).algorithm == ""


@pytest.mark.parametrize("config", [{"hidden_act": "relu"}, {"hidden_act": "gelu_new"}])
def test_another_bert_is_refused(config: dict[str, Any], tmp_path: Path) -> None:
    assert "gelu in BERT alone, and config.json has another hidden_act" in refused(classifier(tmp_path, **config))


def test_a_bert_whose_tensors_have_other_names_is_refused(tmp_path: Path) -> None:
    """As old conversions have them: upstream would raise KeyError in the middle of loading."""
    folder = classifier(tmp_path)
    names = [f"bert.embeddings.{part}_embeddings.weight" for part in ("word", "position", "token_type")]
    tensors: Headers = {name: ("F32", (8, HIDDEN_SIZE)) for name in names}
    write_headers(tmp_path / "model.safetensors", tensors | {"bert.embeddings.LayerNorm.gamma": ("F32", (8,))})

    assert "'bert.embeddings.LayerNorm.weight'" in refused(folder)


def test_a_bert_of_a_billion_layers_is_refused_at_the_first_that_is_missing(tmp_path: Path) -> None:
    folder = classifier(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**9}))

    assert "'bert.encoder.layer.3.attention.self.query.weight'" in refused(folder)


def test_bert_and_graphs_are_refused(tmp_path: Path) -> None:
    """Upstream raises at the first batch with token types where they were not declared for its graphs."""
    flags = ModelFlags(dtype="auto", quantization="auto", is_stock=True, records_graphs=True)
    with pytest.raises(ModelError, match=r"^--tensorrt-llm-cuda-graphs is not for BertFor"):
        plan(classifier(tmp_path), [], flags)


def test_a_reward_model(tmp_path: Path) -> None:
    folder = reward_model(tmp_path)
    model_class = stock(folder)

    assert model_class.model_kwargs == {"architectures": ["Qwen2ForRewardModel"]}
    assert (model_class.family, model_class.output, model_class.num_outputs) == (None, OutputKind.LOGITS, 1)
    assert (model_class.pad_id, stock(reward_model(tmp_path, pad_token_id=9)).pad_id) == (None, 9)
    assert (folder.task, folder.labels, folder.activation) == (Task.RERANK, ("LABEL_0",), Activation.IDENTITY)
    assert classify(folder).algorithm == ""


@pytest.mark.parametrize("name", LAYERS)
def test_a_reward_model_without_one_of_its_layers_is_refused(name: str, tmp_path: Path) -> None:
    folder = reward_model(tmp_path, {each: LAYERS[each] for each in LAYERS if each != name})
    with pytest.raises(ModelError, match=f"'{name}'"):
        classify(folder)


@pytest.mark.parametrize("config", [{"is_causal": False}, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}])
def test_a_reward_model_that_is_computed_otherwise_is_refused(config: dict[str, Any], tmp_path: Path) -> None:
    assert refused(reward_model(tmp_path, **config)).startswith("the tensorrt-llm engine ")


@pytest.mark.holds("TensorRT-LLM")
def test_no_other_engine_reads_a_reward_model(tmp_path: Path) -> None:
    """They read the folder without a word on whose classes are known, and are told the way."""
    reward_folder(tmp_path)
    with pytest.raises(ModelError, match=r"needs the code of Qwen2ForRewardModel.*--tensorrt-llm-model-class stock"):
        model_folder.read(tmp_path)


@pytest.mark.holds("TensorRT-LLM")
@pytest.mark.parametrize(
    ("engine", "model_class"), [("tensorrt-llm", "embedline"), ("auto", "stock"), ("fused", "stock"), ("fake", "stock")]
)
def test_a_server_of_another_engine_or_class_does_not_start(engine: str, model_class: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="needs the code of Qwen2ForRewardModel"):
        planned(reward_folder(tmp_path), engine, model_class)


def test_a_server_of_the_stock_class_is_planned(tmp_path: Path) -> None:
    plan = planned(reward_folder(tmp_path), "tensorrt-llm", "stock")

    assert (plan.folder.task, plan.folder.outputs) == (Task.RERANK, OutputKind.LOGITS)


def test_models_that_score_each_token_are_refused(tmp_path: Path) -> None:
    name = "Qwen2ForProcessRewardModel"
    with pytest.raises(ModelError, match=f"needs the code of {name}"):
        reward_model(tmp_path, architectures=[name], auto_map={"AutoModel": f"modeling_qwen2_rm.{name}"})


@pytest.mark.parametrize(("model_type", "task"), [("llama", "embed"), ("mistral", "embed")])
def test_others_are_refused_with_what_there_is(model_type: str, task: str, tmp_path: Path) -> None:
    assert refused(write_model(tmp_path, model_type=model_type, sliding_window=None)) == (
        f"--tensorrt-llm-model-class stock has no class for {model_type} with task {task}; it has "
        "BertForSequenceClassification, Qwen3ForTextEmbedding and Qwen2ForRewardModel"
    )

"""nvidia/llama-nemotron-embed-1b-v2 and -rerank-1b-v2 (llama_bidirectional_model.py in both).

The same code is public in NVIDIA-NeMo/NeMo, nemo/collections/llm/gpt/model/hf_llama_embedding.py: all masks but the
padding's are left out, `pool` with "avg" is the mean, and the scores are divided by `temperature`.
"""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from engine.model import model_folder
from engine.model.tasks import Task
from engine.types import ModelError, OutputKind
from tests.engine.published import decoder
from tests.engine.published.agreement import SEQLENS, check
from tests.engine.published.folders import Weights, arbitrary, save, sequences
from tests.engine.published.reading import OPENVINO, TRANSFORMERS
from tests.tiers import full_but

MODEL, RERANKER = "LlamaBidirectionalModel", "LlamaBidirectionalForSequenceClassification"
CODE = "llama_bidirectional_model"
CONFIG: dict[str, Any] = {
    "architectures": [MODEL],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": f"{CODE}.LlamaBidirectionalConfig", "AutoModel": f"{CODE}.{MODEL}"},
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 40,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama_bidirec",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pooling": "avg",
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    },
    "rope_theta": 500.0,
    "temperature": 1.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.44.2",
    "use_cache": True,
    "vocab_size": 120,
}
SCORING: dict[str, Any] = CONFIG | {
    "architectures": [RERANKER],
    "auto_map": {
        "AutoConfig": f"{CODE}.LlamaBidirectionalConfig",
        "AutoModelForSequenceClassification": f"{CODE}.{RERANKER}",
    },
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
    "temperature": 0.2,
}


ENGINES = full_but((TRANSFORMERS,), (TRANSFORMERS, OPENVINO))
TEXTS = sequences(120, SEQLENS)


def scoring(folder: Path, **changes: Any) -> tuple[Path, Weights]:
    weights = arbitrary({**decoder.shapes(SCORING, prefix="model."), "score.weight": (1, 32)})
    return save(folder, SCORING | changes, weights), weights


@pytest.mark.parametrize("engine", ENGINES)
def test_the_mean_of_rows_that_see_both_ways(engine: str, tmp_path: Path) -> None:
    weights = arbitrary(decoder.shapes(CONFIG))
    modules = {"Transformer": "", "Pooling:mean": "1_Pooling", "Normalize": "2_Normalize"}
    folder = save(tmp_path / "model", CONFIG, weights, modules=modules)
    check(engine, folder, TEXTS, decoder.means(weights, CONFIG, TEXTS))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_rerankers_score_is_divided_by_its_temperature(engine: str, tmp_path: Path) -> None:
    folder, weights = scoring(tmp_path / "model")
    means = decoder.means(weights, SCORING, TEXTS, prefix="model.")
    expected: Tensor = means @ weights["score.weight"].T / 0.2
    check(engine, folder, TEXTS, expected, kind=OutputKind.LOGITS)


def test_a_pair_is_one_text(tmp_path: Path) -> None:
    """As on the model's card, and in vllm-project/vllm, examples/pooling/score/template/nemotron-rerank.jinja."""
    found = model_folder.read(scoring(tmp_path / "model")[0])
    assert found.task is Task.RERANK
    assert found.template is not None
    assert found.template.parts == ("<|begin_of_text|>", "question:{query} \n \n passage:{document}")


def test_the_model_type_alone_tells_the_code(tmp_path: Path) -> None:
    config = {key: value for key, value in SCORING.items() if key != "auto_map"}
    found = model_folder.read(save(tmp_path / "model", config, scoring(tmp_path / "another")[1]))
    assert (found.config["is_causal"], found.config["score_temperature"]) == (False, 0.2)
    with pytest.raises(ModelError, match="nothing has to be trusted"):
        model_folder.read(scoring(tmp_path / "trusted")[0], trusted_keys=("auto_map",))


@pytest.mark.parametrize(
    ("key", "value"),
    [("pooling", "last"), ("temperature", 0), ("temperature", "warm"), ("attention_window", 4)],
)
def test_what_the_code_would_compute_and_nothing_here_does_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    folder, _ = scoring(tmp_path / "model", **{key: value})
    with pytest.raises(ModelError, match=key):
        model_folder.read(folder)

"""Alibaba's `new` architecture in its published forms, against a reading of its code.

Read: Alibaba-NLP/new-impl, modeling.py (NTKScalingRotaryEmbedding, NewAttention, NewGatedMLP, NewLayer, NewPooler) and
configuration.py; config.json and names of weights as in Alibaba-NLP/gte-multilingual-base, gte-base-en-v1.5 and
gte-multilingual-reranker-base, and Snowflake/snowflake-arctic-embed-m-v2.0.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.model import model_folder
from engine.types import ModelError, OutputKind
from tests.engine.published import reading
from tests.engine.published.folders import Weights, arbitrary, save, sequences

V, D, F, N, LAYERS = 90, 24, 40, 3, 2
EPS = 1e-12
POOLED_AND_NORMALIZED = {"Transformer": "", "Pooling:cls": "1_Pooling", "Normalize": "2_Normalize"}
CONFIG: dict[str, Any] = {
    "architectures": ["NewModel", "NewForTokenClassification"],
    "attention_probs_dropout_prob": 0.0,
    "auto_map": {
        "AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig",
        "AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel",
        "AutoModelForMaskedLM": "Alibaba-NLP/new-impl--modeling.NewForMaskedLM",
        "AutoModelForMultipleChoice": "Alibaba-NLP/new-impl--modeling.NewForMultipleChoice",
        "AutoModelForQuestionAnswering": "Alibaba-NLP/new-impl--modeling.NewForQuestionAnswering",
        "AutoModelForSequenceClassification": "Alibaba-NLP/new-impl--modeling.NewForSequenceClassification",
        "AutoModelForTokenClassification": "Alibaba-NLP/new-impl--modeling.NewForTokenClassification",
    },
    "classifier_dropout": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": D,
    "id2label": {"0": "LABEL_0"},
    "initializer_range": 0.02,
    "intermediate_size": F,
    "label2id": {"LABEL_0": 0},
    "layer_norm_eps": EPS,
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "max_position_embeddings": 64,
    "model_type": "new",
    "num_attention_heads": N,
    "num_hidden_layers": LAYERS,
    "pack_qkv": True,
    "pad_token_id": 1,
    "position_embedding_type": "rope",
    "rope_scaling": {"factor": 8.0, "type": "ntk"},
    "rope_theta": 20000,
    "torch_dtype": "float16",
    "transformers_version": "4.39.1",
    "type_vocab_size": 1,
    "unpad_inputs": True,
    "use_memory_efficient_attention": True,
    "vocab_size": V,
}
ARCTIC = {
    "architectures": ["GteModel"],
    "auto_map": {
        "AutoConfig": "configuration_hf_alibaba_nlp_gte.GteConfig",
        "AutoModel": "modeling_hf_alibaba_nlp_gte.GteModel",
    },
    "model_type": "gte",
    "matryoshka_dimensions": [256],
}
OWN_CODE = {key: name.rpartition("--")[2] for key, name in CONFIG["auto_map"].items()}


def weights(prefix: str, *, num_types: int = 1, others: dict[str, tuple[int, ...]] | None = None) -> Weights:
    shapes: dict[str, tuple[int, ...]] = {"embeddings.word_embeddings.weight": (V, D)}
    if num_types:
        shapes["embeddings.token_type_embeddings.weight"] = (num_types, D)
    for name in ("weight", "bias"):
        shapes[f"embeddings.LayerNorm.{name}"] = (D,)
    for layer in range(LAYERS):
        own = f"encoder.layer.{layer}"
        shapes |= {f"{own}.attention.qkv_proj.weight": (3 * D, D), f"{own}.attention.qkv_proj.bias": (3 * D,)}
        shapes |= {f"{own}.attention.o_proj.weight": (D, D), f"{own}.attention.o_proj.bias": (D,)}
        shapes |= {f"{own}.mlp.up_gate_proj.weight": (2 * F, D)}
        shapes |= {f"{own}.mlp.down_proj.weight": (D, F), f"{own}.mlp.down_proj.bias": (D,)}
        shapes |= {f"{own}.{norm}.{name}": (D,) for norm in ("attn_ln", "mlp_ln") for name in ("weight", "bias")}
    return arbitrary({f"{prefix}{name}": shape for name, shape in shapes.items()} | (others or {}))


def token_rows(config: dict[str, Any], named: Weights, ids: list[int]) -> Tensor:
    """The reading."""
    w = {name.removeprefix("new."): tensor for name, tensor in named.items()}
    rows = w["embeddings.word_embeddings.weight"][ids]
    if config["type_vocab_size"]:
        rows = rows + w["embeddings.token_type_embeddings.weight"][0]
    rows = reading.norm(w, "embeddings.LayerNorm", rows, EPS)
    theta, head_size = config["rope_theta"], D // N
    turn = reading.frequencies(theta, head_size)
    if config["rope_scaling"]:
        factor = config["rope_scaling"]["factor"]
        turn = reading.frequencies(theta * factor, head_size) / factor ** (2 / head_size)
    for layer in range(LAYERS):
        own = f"encoder.layer.{layer}"
        query, key, value = reading.linear(w, f"{own}.attention.qkv_proj", rows).chunk(3, dim=-1)
        found = reading.attention(reading.turned(query, N, turn), reading.turned(key, N, turn), value, N)
        rows = reading.norm(w, f"{own}.attn_ln", rows + reading.linear(w, f"{own}.attention.o_proj", found), EPS)
        up, gate = reading.linear(w, f"{own}.mlp.up_gate_proj", rows).chunk(2, dim=-1)
        found = reading.linear(w, f"{own}.mlp.down_proj", reading.gelu(gate) * up)
        rows = reading.norm(w, f"{own}.mlp_ln", rows + found, EPS)
    return rows


FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "gte-multilingual-base": (CONFIG, "new."),
    "gte-base-en-v1.5": (
        {**CONFIG, "auto_map": OWN_CODE, "type_vocab_size": 0, "rope_scaling": {"factor": 2.0, "type": "ntk"}},
        "",
    ),
    "stella_en_400M_v5": ({**CONFIG, "auto_map": OWN_CODE, "type_vocab_size": 2, "rope_theta": 160000}, "new."),
    "snowflake-arctic-embed-m-v2.0": ({**CONFIG, **ARCTIC}, ""),
    "without scaling": ({**CONFIG, "rope_scaling": None}, "new."),
}


@pytest.mark.parametrize(
    ("form", "engine"),
    [
        *((form, reading.TRANSFORMERS) for form in FORMS),
        *(pytest.param(form, reading.OPENVINO, marks=pytest.mark.full) for form in FORMS),
        *(pytest.param(form, reading.FUSED, marks=pytest.mark.full) for form in FORMS),
    ],
)
def test_embeddings_are_those_of_the_code(form: str, engine: str, tmp_path: Path) -> None:
    config, prefix = FORMS[form]
    # a head for term weights, which is not served
    named = weights(
        prefix, num_types=config["type_vocab_size"], others={"classifier.weight": (1, D), "classifier.bias": (1,)}
    )
    folder = save(tmp_path, config, named, modules=POOLED_AND_NORMALIZED)
    for one in reading.together_and_alone(sequences(V)):
        found, note = reading.computed(engine, folder, one)
        expected = [token_rows(config, named, ids)[0] for ids in reading.ids_of(one)]
        assert reading.difference(found, expected) < 1e-5
        assert engine != reading.TRANSFORMERS or note.startswith("packed")


@pytest.mark.parametrize("engine", [reading.TRANSFORMERS, pytest.param(reading.OPENVINO, marks=pytest.mark.full)])
def test_scores_of_the_reranker_are_those_of_the_code(engine: str, tmp_path: Path) -> None:
    config = {**CONFIG, "architectures": ["NewForSequenceClassification"]}
    head = {"new.pooler.dense.weight": (D, D), "new.pooler.dense.bias": (D,)}
    named = weights("new.", others={**head, "classifier.weight": (1, D), "classifier.bias": (1,)})
    folder = save(tmp_path, config, named)

    def score(ids: list[int]) -> Tensor:
        pooled = torch.tanh(reading.linear(named, "new.pooler.dense", token_rows(config, named, ids)[0]))
        return reading.linear(named, "classifier", pooled)

    for one in reading.together_and_alone(sequences(V), OutputKind.LOGITS):
        found, _ = reading.computed(engine, folder, one)
        assert reading.difference(found, [score(ids) for ids in reading.ids_of(one)]) < 1e-5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_norm_type", "rms_norm"),
        ("logn_attention_scale", True),
        ("position_embedding_type", "absolute"),
        ("pack_qkv", False),
        ("rope_scaling", {"factor": 8.0, "type": "ntk", "mixed_b": 0.6}),
        ("rope_scaling", {"factor": 8.0, "type": "dynamic"}),
    ],
)
def test_keys_that_would_change_rows_are_refused_by_name(key: str, value: object, tmp_path: Path) -> None:
    folder = save(tmp_path, {**CONFIG, key: value}, weights("new."))
    with pytest.raises(ModelError, match=key):
        model_folder.read(folder)


def test_a_fine_tuned_copy_without_auto_map_has_the_same_angles(tmp_path: Path) -> None:
    """As of Snowflake/snowflake-arctic-embed-m-v2.0: transformers' gte has no angles of the type ntk."""
    own = {key: value for key, value in CONFIG.items() if key != "auto_map"} | {"model_type": "gte"}
    copied = model_folder.read(save(tmp_path / "copy", own, weights(""), modules=POOLED_AND_NORMALIZED))
    original = model_folder.read(save(tmp_path / "new", CONFIG, weights(""), modules=POOLED_AND_NORMALIZED))
    assert copied.config["rope_parameters"] == original.config["rope_parameters"]
    assert copied.is_translated

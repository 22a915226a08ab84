"""Jina's XLM-RoBERTa with rotary positions in its published forms, against a reading of its code: jina-embeddings-v3
with its adapters, jina-reranker-v2-base-multilingual and jina-colbert-v2.

Read: jinaai/xlm-roberta-flash-implementation, modeling_xlm_roberta.py, embedding.py and modeling_lora.py
(LoRAParametrization.lora_forward); config.json as in the three repositories.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.model import model_folder
from engine.types import ADAPTER_SHIFT, ModelError, OutputKind
from tests.engine.folder_files import write
from tests.engine.model.detection.shapes import tokenizer
from tests.engine.published import reading
from tests.engine.published.folders import Weights, arbitrary, save, sequences

V, D, F, N, LAYERS, RANK = 90, 24, 40, 3, 2, 2
EPS = 1e-5
THETA = 20000.0
TASKS = ("retrieval.query", "retrieval.passage", "separation", "classification", "text-matching")
_CODE = "jinaai/xlm-roberta-flash-implementation--"
_BASE: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.1,
    "bos_token_id": 0,
    "classifier_dropout": None,
    "eos_token_id": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": D,
    "initializer_range": 0.02,
    "intermediate_size": F,
    "layer_norm_eps": EPS,
    "max_position_embeddings": 66,
    "model_type": "xlm-roberta",
    "num_attention_heads": N,
    "num_hidden_layers": LAYERS,
    "output_past": True,
    "pad_token_id": 1,
    "position_embedding_type": "rotary",
    "rotary_emb_base": THETA,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0",
    "truncate_dim": None,
    "type_vocab_size": 1,
    "use_cache": True,
    "use_flash_attn": True,
    "use_reentrant": False,
    "vocab_size": V,
}
V3 = {
    **_BASE,
    "_name_or_path": "jinaai/jina-embeddings-v3",
    "architectures": ["XLMRobertaModel"],
    "auto_map": {
        "AutoConfig": f"{_CODE}configuration_xlm_roberta.XLMRobertaFlashConfig",
        "AutoModel": f"{_CODE}modeling_lora.XLMRobertaLoRA",
        "AutoModelForMaskedLM": f"{_CODE}modeling_xlm_roberta.XLMRobertaForMaskedLM",
        "AutoModelForPreTraining": f"{_CODE}modeling_xlm_roberta.XLMRobertaForPreTraining",
    },
    "load_trained_adapters": True,
    "lora_adaptations": list(TASKS),
    "lora_alpha": 1,
    "lora_dropout_p": 0.0,
    "lora_main_params_trainable": False,
    "lora_rank": RANK,
    "matryoshka_dimensions": [8, 16, 24],
    "task_instructions": {
        **dict.fromkeys(TASKS, ""),
        "retrieval.query": "Represent the query for retrieving evidence documents: ",
        "retrieval.passage": "Represent the document for retrieval: ",
    },
}
RERANKER = {
    **{key: value for key, value in _BASE.items() if key not in ("model_type", "rotary_emb_base", "use_reentrant")},
    "_name_or_path": "jina-reranker-v2-base-multilingual",
    "architectures": ["XLMRobertaForSequenceClassification"],
    "auto_map": {
        "AutoConfig": "configuration_xlm_roberta.XLMRobertaFlashConfig",
        "AutoModel": "modeling_xlm_roberta.XLMRobertaModel",
        "AutoModelForSequenceClassification": "modeling_xlm_roberta.XLMRobertaForSequenceClassification",
    },
    "emb_pooler": None,
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
    "num_labels": 1,
    "position_embedding_type": "absolute",
    "use_cache": False,
}
COLBERT = {
    **_BASE,
    "architectures": ["HF_ColBERT"],
    "auto_map": {
        "AutoConfig": f"{_CODE}configuration_xlm_roberta.XLMRobertaFlashConfig",
        "AutoModel": f"{_CODE}modeling_xlm_roberta.XLMRobertaModel",
    },
}
V3_MODULES = {"custom_st.Transformer": "", "Pooling:mean": "1_Pooling", "Normalize": "2_Normalize"}


def shapes(*, num_positions: int = 0) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"roberta.embeddings.word_embeddings.weight": (V, D)}
    if num_positions:
        found["roberta.embeddings.position_embeddings.weight"] = (num_positions, D)
    found |= {"roberta.embeddings.token_type_embeddings.weight": (1, D)}
    found |= {"roberta.emb_ln.weight": (D,), "roberta.emb_ln.bias": (D,)}
    layers = {"mixer.Wqkv": (3 * D, D), "mixer.out_proj": (D, D), "mlp.fc1": (F, D), "mlp.fc2": (D, F)}
    for number in range(LAYERS):
        for name, shape in {**layers, "norm1": (D,), "norm2": (D,)}.items():
            layer = f"roberta.encoder.layers.{number}.{name}"
            found |= {f"{layer}.weight": shape, f"{layer}.bias": shape[:1]}
    return found


def with_adapters(plain: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """As the code stores layers and tables that have adapters."""
    found = {}
    for name, shape in plain.items():
        if len(shape) != 2 or not name.endswith(".weight"):
            found[name] = shape
            continue
        own, (rows, columns) = name.removesuffix("weight") + "parametrizations.weight", shape
        is_table = "embeddings" in name
        found[f"{own}.original"] = shape
        found[f"{own}.0.lora_A"] = (len(TASKS), rows, RANK) if is_table else (len(TASKS), RANK, columns)
        found[f"{own}.0.lora_B"] = (len(TASKS), RANK, columns) if is_table else (len(TASKS), rows, RANK)
    return found


def of_task(named: Weights, task: int | None) -> Weights:
    """Plain weights, the task's adapter added to each: W + B A * alpha / rank, of tables W + A B."""
    found = {}
    for name, tensor in named.items():
        if ".0.lora_" in name:
            continue
        plain = name.replace("parametrizations.weight.original", "weight")
        if plain != name and task is not None:
            own = name.removesuffix("original")
            first, second = named[f"{own}0.lora_A"][task], named[f"{own}0.lora_B"][task]
            product = first @ second if "embeddings" in name else second @ first
            tensor = tensor + product * V3["lora_alpha"] / RANK
        found[plain] = tensor
    return found


def token_rows(w: Weights, ids: list[int]) -> Tensor:
    """The reading. Positions are absolute, from pad_token_id + 1 on, where there is a table for them."""
    rows = w["roberta.embeddings.word_embeddings.weight"][ids] + w["roberta.embeddings.token_type_embeddings.weight"][0]
    positions = w.get("roberta.embeddings.position_embeddings.weight")
    rows = rows if positions is None else rows + positions[2 : len(ids) + 2]
    rows = reading.norm(w, "roberta.emb_ln", rows, EPS)
    turn = reading.frequencies(THETA, D // N) * (positions is None)
    for number in range(LAYERS):
        layer = f"roberta.encoder.layers.{number}"
        query, key, value = reading.linear(w, f"{layer}.mixer.Wqkv", rows).chunk(3, dim=-1)
        found = reading.attention(reading.turned(query, N, turn), reading.turned(key, N, turn), value, N)
        rows = reading.norm(w, f"{layer}.norm1", rows + reading.linear(w, f"{layer}.mixer.out_proj", found), EPS)
        found = reading.linear(w, f"{layer}.mlp.fc2", reading.gelu(reading.linear(w, f"{layer}.mlp.fc1", rows)))
        rows = reading.norm(w, f"{layer}.norm2", rows + found, EPS)
    return rows


@pytest.mark.parametrize("engine", [reading.TRANSFORMERS, pytest.param(reading.OPENVINO, marks=pytest.mark.full)])
def test_each_sequence_of_a_batch_has_its_own_adapter(engine: str, tmp_path: Path) -> None:
    named = arbitrary(
        with_adapters(shapes() | {"roberta.pooler.dense.weight": (D, D), "roberta.pooler.dense.bias": (D,)})
    )
    folder = save(tmp_path, V3, named, modules=V3_MODULES)
    assert model_folder.read(folder).adapters == TASKS
    tasks: list[int | None] = [None, 0, 4, None, 2]
    for one in reading.together_and_alone(sequences(V)):
        own = tasks if one.num_seqs > 1 else [3]
        numbers = np.repeat([0 if task is None else task + 1 for task in own], np.diff(one.cu_seqlens))
        one = dataclasses.replace(one, token_type_ids=(numbers << ADAPTER_SHIFT).astype(np.int32))
        found, note = reading.computed(engine, folder, one)
        ids = reading.ids_of(one)
        expected = [token_rows(of_task(named, task), each).mean(0) for task, each in zip(own, ids, strict=True)]
        assert reading.difference(found, expected) < 1e-5
        assert engine != reading.TRANSFORMERS or note.startswith("packed")


def test_without_a_task_there_is_no_adapter(tmp_path: Path) -> None:
    named = arbitrary(with_adapters(shapes()))
    folder = save(tmp_path, V3, named, modules=V3_MODULES)
    for one in reading.together_and_alone(sequences(V)):
        found, _ = reading.computed(reading.TRANSFORMERS, folder, one)
        expected = [token_rows(of_task(named, None), ids).mean(0) for ids in reading.ids_of(one)]
        assert reading.difference(found, expected) < 1e-5


@pytest.mark.parametrize("engine", [reading.TRANSFORMERS, pytest.param(reading.OPENVINO, marks=pytest.mark.full)])
def test_scores_of_the_reranker_are_those_of_the_code(engine: str, tmp_path: Path) -> None:
    head = {"classifier.dense.weight": (D, D), "classifier.dense.bias": (D,)}
    head |= {"classifier.out_proj.weight": (1, D), "classifier.out_proj.bias": (1,)}
    named = arbitrary(shapes(num_positions=66) | head)
    folder = save(tmp_path, RERANKER, named)

    def score(ids: list[int]) -> Tensor:
        hidden = torch.tanh(reading.linear(named, "classifier.dense", token_rows(named, ids)[0]))
        return reading.linear(named, "classifier.out_proj", hidden)

    for one in reading.together_and_alone(sequences(V), OutputKind.LOGITS):
        found, _ = reading.computed(engine, folder, one)
        assert reading.difference(found, [score(ids) for ids in reading.ids_of(one)]) < 1e-5


def test_vectors_of_the_colbert_are_those_of_the_code(tmp_path: Path) -> None:
    named = arbitrary(shapes() | {"linear.weight": (12, D)})
    folder = save(tmp_path, COLBERT, named)
    tokenizer(folder)
    markers = {"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_maxlen": 32, "dim": 12}
    write(folder / "artifact.metadata", {**markers, "attend_to_mask_tokens": True, "mask_punctuation": True})
    for one in reading.together_and_alone(sequences(V), OutputKind.MULTI_VECTOR):
        found, note = reading.computed(reading.TRANSFORMERS, folder, one)
        vectors = torch.cat([reading.linear(named, "linear", token_rows(named, ids)) for ids in reading.ids_of(one)])
        assert reading.difference(found, list(vectors / vectors.norm(dim=1, keepdim=True))) < 1e-5
        assert note.startswith("packed")


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        (RERANKER, "position_embedding_type", "alibi"),
        (COLBERT, "rotary_emb_interleaved", True),
        (COLBERT, "rotary_emb_scale_base", 512),
        (COLBERT, "lora_adaptations", ["a"]),
        (V3, "load_trained_adapters", False),
    ],
)
def test_keys_that_would_change_rows_are_refused_by_name(
    config: dict[str, Any], key: str, value: object, tmp_path: Path
) -> None:
    folder = save(tmp_path, {**config, key: value}, arbitrary(shapes()))
    with pytest.raises(ModelError, match=key):
        model_folder.read(folder)

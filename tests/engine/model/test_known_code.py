"""Repositories with code of their own: what their keys mean to the classes that serve them."""

from pathlib import Path
from typing import Any

import pytest

from engine.model import model_folder
from engine.model.known_code.table import KNOWN
from engine.transformers.configuration import OWN
from engine.types import ModelError
from tests.engine.folder_files import change, write
from tests.engine.model.detection import shapes
from tests.parity.repositories.models.families import published

NOMIC: dict[str, Any] = published("nomic-embed-text-v1.5")
_GIGA = {"model_type": "qwen3_bidirec", "auto_map": {"AutoModel": "modeling_gigarembed.Qwen3BidirectionalModel"}}
_RERANKER = "Mistral3ForSequenceClassification"


def folder(path: Path, **fields: Any) -> Path:
    shapes.embedding(path)
    write(path / "config.json", {**NOMIC, **fields})
    write(path / "d2" / "config.json", {"in_features": 768, "out_features": 4})
    shapes.weights(path / "d2" / "model.safetensors", linear__weight=(4, 768), linear__bias=(4,))
    return path


def read(path: Path, **fields: Any) -> dict[str, Any]:
    return model_folder.read(folder(path, **fields)).config


def read_code(path: Path, code: dict[str, Any], **fields: Any) -> dict[str, Any]:
    shapes.embedding(path)
    sizes = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 1, "vocab_size": 100}
    write(path / "config.json", {**sizes, "max_position_embeddings": 64, **code, **fields})
    write(path / "d2" / "config.json", {"in_features": 768, "out_features": 4})
    shapes.weights(path / "d2" / "model.safetensors", linear__weight=(4, 768), linear__bias=(4,))
    return model_folder.read(path).config


def test_known_code_is_served_in_the_words_of_the_library(tmp_path: Path) -> None:
    found = model_folder.read(folder(tmp_path))
    assert (found.architecture, found.hidden_size, found.is_translated) == ("nomic_bert", 768, True)
    assert found.config == {
        "model_type": "nomic_bert",
        "architectures": ["NomicBertModel"],
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-12,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000},
        "type_vocab_size": 2,
        "vocab_size": 30528,
        "initializer_range": 0.02,
        "torch_dtype": "float32",
        "transformers_version": "4.37.2",
        "use_cache": True,
    }
    assert "auto_map in config.json is not followed" in found.notes


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"n_layer": 6, "rotary_emb_base": 10_000}, {"num_hidden_layers": 6}),
        ({"n_inner": 2100}, {"intermediate_size": 2304}),  # rounded up to 256
        ({"n_inner": None}, {"intermediate_size": 2048}),
        ({"vocab_size": 30522}, {"vocab_size": 30528}),
        ({"rotary_scaling_factor": 2}, {"max_position_embeddings": 2048}),
        ({"layer_norm_epsilon": None}, {"layer_norm_eps": 1e-5}),
        ({"hidden_size": 768}, {"hidden_size": 768}),
    ],
)
def test_a_key_of_known_code_is_honoured(fields: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    found = read(tmp_path, **fields)
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"rotary_emb_interleaved": True}, "rotary_emb_interleaved"),
        ({"rotary_emb_fraction": 0.5}, "rotary_emb_fraction"),
        ({"prenorm": True}, "prenorm"),
        ({"use_rms_norm": True}, "use_rms_norm"),
        ({"num_experts": 8}, "num_experts"),
        ({"mlp_fc1_bias": None}, "mlp_fc1_bias"),  # the code's default is true
        ({"rotary_emb_base": None}, "rotary_emb_base"),
        ({"is_decoder": True}, "is_decoder"),
        ({"hidden_size": 512}, "n_embd"),
        ({"rope_parameters": {"rope_theta": 10_000.0}}, "rotary_emb_base"),
        ({"some_new_key": 1}, "some_new_key"),
    ],
)
def test_a_key_that_only_the_code_computes_is_named(fields: dict[str, Any], key: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"'{key}'"):
        read(tmp_path, **fields)


def test_only_a_key_that_is_refused_can_be_trusted(tmp_path: Path) -> None:
    own = folder(tmp_path, some_new_key=1, prenorm=True)
    found = model_folder.read(own, trusted_keys=("some_new_key", "prenorm"))
    assert "--trust-config-key: prenorm, some_new_key" in found.notes
    for key in ("n_head", "causal", "auto_map"):
        with pytest.raises(ModelError, match=f"--trust-config-key {key}: .* nothing has to be trusted"):
            model_folder.read(own, trusted_keys=("some_new_key", "prenorm", key))


def test_so_it_is_without_code(tmp_path: Path) -> None:
    shapes.embedding(tmp_path)
    change(tmp_path / "config.json", alibi=True, made_up=1)
    assert "--trust-config-key: alibi" in model_folder.read(tmp_path, trusted_keys=("alibi",)).notes
    for key in ("hidden_size", "made_up"):
        with pytest.raises(ModelError, match=f"--trust-config-key {key}: .* nothing has to be trusted"):
            model_folder.read(tmp_path, trusted_keys=("alibi", key))


def test_the_code_that_is_not_known_is_named(tmp_path: Path) -> None:
    codes = {**NOMIC["auto_map"], "AutoModel": "modeling_own.OwnModel"}
    with pytest.raises(ModelError, match=r"the code of modeling_own\.OwnModel"):
        read(tmp_path, auto_map=codes)


def test_giga_is_served_without_causality_and_without_a_window(tmp_path: Path) -> None:
    found = read_code(tmp_path, _GIGA, layer_types=["full_attention"], sliding_window=1024)
    assert (found["model_type"], found["is_causal"]) == ("qwen3", False)
    assert not {"layer_types", "sliding_window"} & found.keys()
    with pytest.raises(ModelError, match="'layer_types'"):
        read_code(tmp_path, _GIGA, layer_types=["full_attention", "sliding_attention"])
    with pytest.raises(ModelError, match="'is_causal'"):
        read_code(tmp_path, _GIGA, is_causal=True)


def test_a_null_that_is_no_default_is_kept(tmp_path: Path) -> None:
    found = read_code(tmp_path, {"model_type": "deepseek_v3_bidirec", "q_lora_rank": None}, kv_lora_rank=16)
    assert (found["model_type"], found["q_lora_rank"]) == ("deepseek_v3", None)
    assert "q_lora_rank" not in read_code(tmp_path, {"model_type": "deepseek_v3_bidirec"})


@pytest.mark.parametrize(
    ("model_type", "architecture", "codes", "instead"),
    [
        ("gigarembed", "GigarEmbedModel", {"AutoModel": "modeling_gigarembed.GigarEmbedModel"}, "instruct-480M-0826"),
        ("gigarembed", "GigarEmbedModel", {}, "instruct-480M-0826"),
        ("mistral3", _RERANKER, {"AutoModelForSequenceClassification": f"model.{_RERANKER}"}, "nemotron-rerank-1b-v2"),
    ],
)
def test_a_code_that_is_not_served_names_the_models_that_are(
    model_type: str, architecture: str, codes: dict[str, str], instead: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=instead):
        read_code(tmp_path, {"model_type": model_type, "architectures": [architecture], "auto_map": codes})


def test_what_stella_s_tokens_see_is_asked_for_and_taken(tmp_path: Path) -> None:
    stella = {"model_type": "qwen2", "auto_map": {"AutoModel": "modeling_qwen.Qwen2Model"}}
    with pytest.raises(ModelError, match=r'add "is_causal": false .*stella_en_1\.5B_v5'):
        read_code(tmp_path, stella)
    assert read_code(tmp_path, stella, is_causal=False)["is_causal"] is False


def test_each_architecture_of_ours_has_its_classes() -> None:
    assert set(OWN) >= {code.architecture for code in KNOWN if code.is_ours}
    for architecture, own in OWN.items():
        assert own.config_class.model_type == architecture


def test_known_code_names_what_computes_the_same_or_what_to_serve_instead() -> None:
    assert [code.source for code in KNOWN if bool(code.architecture) == bool(code.instead)] == []

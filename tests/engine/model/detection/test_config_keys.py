"""Keys and values in config.json that no library computes as they stand; what classes save by default is read."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from engine.model import model_folder
from engine.model.coverage import ARCHITECTURES
from engine.model.detection import library
from engine.model.detection.architecture import architecture_of
from engine.model.detection.config import check_keys
from engine.types import ModelError
from tests.engine.engines import refusal
from tests.engine.model.test_known_code import NOMIC
from tests.parity.repositories.own_code.jina_roberta import V3
from tests.parity.repositories.own_code.llama_bidirec import CONFIG as LLAMA
from tests.parity.repositories.own_code.llama_bidirec import SCORING

pytestmark = pytest.mark.holds("What a model is for")

LAYERS = {"full_attention": {"rope_theta": 1.0}, "sliding_attention": {"rope_theta": 2.0}}


def read(model_type: str, **fields: Any) -> None:
    architecture_of(Path("/nowhere"), {"model_type": model_type, **fields})


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma2"])
def test_a_part_of_each_head_is_turned_only_where_transformers_does(model_type: str) -> None:
    read(model_type, partial_rotary_factor=1.0)
    for fields in ({"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}):
        with pytest.raises(ModelError, match="'partial_rotary_factor'"):
            read(model_type, **fields)
    read("phi", partial_rotary_factor=0.5)


@pytest.mark.parametrize(
    ("model_type", "agreeing", "key", "value"),
    [
        ("qwen2", {"rope_scaling": {"rope_type": "default", "rope_theta": 5.0}, "rope_theta": 5.0}, "rope_theta", 6.0),
        ("llama", {"rope_parameters": {"rope_theta": 5.0}, "rope_theta": 5.0}, "rope_theta", 6.0),
        ("modernbert", {"rope_parameters": LAYERS, "global_rope_theta": 1.0}, "global_rope_theta", 2.0),
        ("modernbert", {"rope_parameters": LAYERS, "local_rope_theta": 2.0}, "local_rope_theta", 1.0),
        ("gemma3_text", {"rope_parameters": LAYERS, "rope_local_base_freq": 2.0}, "rope_local_base_freq", 1.0),
    ],
)
def test_a_base_that_differs_in_two_places_is_refused(
    model_type: str, agreeing: dict[str, Any], key: str, value: float
) -> None:
    read(model_type, **agreeing)
    with pytest.raises(ModelError, match=f"'{key}' differs inside and outside"):
        read(model_type, **{**agreeing, key: value})


@pytest.mark.parametrize(
    ("model_type", "key", "value", "part"),
    [
        ("llama", "rope_scaling", {"type": "ntk", "factor": 2.0}, "rope_type 'ntk' of rope_scaling"),
        ("qwen3", "rope_parameters", {"rope_type": ["yarn"], "factor": 2.0}, "is none that transformers computes"),
        ("qwen3", "rope_parameters", {"rope_type": "linear", "factor": "2"}, "has a 'factor' that is no positive"),
        ("qwen2", "rope_scaling", {"rope_type": "yarn"}, "rope_type 'yarn' of rope_scaling in config.json needs 'fact"),
        (
            "llama",
            "rope_scaling",
            {"type": "dynamic", "factor": 2.0, "alpha": 8.0},
            "has 'alpha', which would be passed",
        ),
        ("phi3", "rope_scaling", {"type": "su", "short_factor": [1.0]}, "needs 'long_factor'"),
        ("modernbert", "rope_parameters", {"rope_type": "linear", "factor": 2.0}, "an object for each type of layer"),
        ("gemma3_text", "rope_scaling", {"full_attention": {"rope_theta": 5.0}}, "'full_attention', and a gemma3_text"),
        ("qwen3", "rope_parameters", LAYERS, "'full_attention', and a qwen3 reads none there"),
        ("modernbert", "rope_parameters", {**LAYERS, "others": {}}, "'others', which is no type of layer"),
    ],
)
def test_angles_that_transformers_does_not_compute_are_refused(
    model_type: str, key: str, value: dict[str, Any], part: str
) -> None:
    with pytest.raises(ModelError, match=re.escape(part)):
        read(model_type, **{key: value})


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("phi3", "rope_scaling", {"type": "su", "short_factor": [1.0], "long_factor": [2]}),
        ("gemma3_text", "rope_scaling", {"rope_type": "linear", "factor": 8.0}),
        ("gpt_oss", "rope_scaling", {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "truncate": False}),
        ("llama", "rope_scaling", {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}),
    ],
)
def test_angles_that_it_computes_are_served(model_type: str, key: str, value: dict[str, Any]) -> None:
    read(model_type, **{key: value})


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("llama", "rope_type", "linear"),
        ("llama", "factor", 2.0),
        ("qwen3", "global_rope_theta", 5.0),
        ("llama", "local_rope_theta", 5.0),
        ("qwen3", "rope_local_base_freq", 5.0),
        ("bert", "rope_scaling", {"rope_type": "linear", "factor": 2.0}),
    ],
)
def test_angles_where_transformers_looks_for_none_are_refused_unless_trusted(
    model_type: str, key: str, value: object
) -> None:
    with pytest.raises(ModelError, match=f"'{key}' in config.json is .* --trust-config-key {key}$"):
        read(model_type, **{key: value})
    architecture_of(Path("/nowhere"), {"model_type": model_type, key: value}, trusted=(key,))


def test_what_is_said_inside_may_be_said_outside_too() -> None:
    rope = {"rope_type": "linear", "factor": 2.0}
    read("llama", rope_scaling=rope, **rope)
    with pytest.raises(ModelError, match="'factor'"):
        read("llama", rope_scaling=rope, factor=3.0)


def test_only_modernbert_may_say_that_it_has_no_table_of_positions() -> None:
    """mmBERT's and Ettin's files do."""
    read("modernbert", position_embedding_type="sans_pos")
    with pytest.raises(ModelError, match="'position_embedding_type'"):
        read("bert", position_embedding_type="sans_pos")


ULTRABERT: dict[str, Any] = {
    "model_type": "ultrabert",
    "num_hidden_layers": 3,
    "attention_windows": [6, 6, None],
    "rope_theta": [10.0, 10.0, 100.0],
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_windows", [6, 7, None]),
        ("attention_windows", [6, 6]),
        ("attention_windows", "6"),
        ("attention_windows", [6, True, None]),
        ("rope_theta", [10.0, 20.0, 100.0]),
        ("rope_theta", [10.0, 100.0]),
        ("rope_theta", 10.0),
        ("layer_types", ["full_attention"] * 3),
    ],
)
def test_ultraberts_lists_have_one_number_for_each_type_of_layers(key: str, value: object) -> None:
    read(**ULTRABERT)
    with pytest.raises(ModelError, match=f"'{key}' in config.json"):
        read(**{**ULTRABERT, key: value})


BERT = {"model_type": "bert", "hidden_size": 12, "num_attention_heads": 3, "vocab_size": 30}
QWEN3 = {"model_type": "qwen3", "hidden_size": 12, "num_attention_heads": 5, "num_key_value_heads": 5}
NAN = float("nan")
NUMBERS = ("1e-5", True, NAN, -1.0, 0, [1])


def read_config(config: dict[str, Any], **others: Any) -> None:
    architecture_of(Path("/nowhere"), config | others)


@pytest.mark.parametrize(
    ("config", "key", "values"),
    [
        (BERT, "layer_norm_eps", NUMBERS),
        (BERT, "vocab_size", NUMBERS),
        (BERT, "hidden_size", NUMBERS),
        (BERT, "hidden_act", ("words", 1, ["gelu"])),
        (BERT, "pad_token_id", (30, -2, "0", 1.0, True)),
        (BERT, "num_attention_heads", (5,)),
        (BERT, "initializer_range", (NAN,)),
        (BERT, "id2label", ({"a": "b"}, ["a"])),
        (BERT, "intermediate_size", ([12],)),
        (QWEN3, "rope_theta", NUMBERS),
        (QWEN3, "rms_norm_eps", NUMBERS),
        (QWEN3, "rope_scaling", ("yarn", [1], {"rope_theta": 5.0}, {"original_max_position_embeddings": 8})),
        (QWEN3, "num_key_value_heads", (2, 3, 10)),
        (QWEN3, "head_dim", (7,)),
        ({"model_type": "gemma"}, "hidden_activation", ("gelu",)),  # the installed version reads hidden_act
        (V3, "lora_alpha", ("1", True, NAN)),
        (V3, "pad_token_id", (-1, V3["vocab_size"], "1")),
        (V3, "rotary_emb_base", NUMBERS),
        (V3, "num_attention_heads", (15, 24)),
        (NOMIC, "n_head", (NAN, 5, 256)),  # 256: three numbers in each, which are turned in pairs
        (NOMIC, "layer_norm_epsilon", NUMBERS),
        (LLAMA, "rope_scaling", ({"type": "llama3", "factor": 2.0, "high_freq_factor": 4.0}, {"factor": 1})),
        (SCORING, "rope_scaling", ({"type": "llama3", "factor": 2.0, "high_freq_factor": 4.0}, {"factor": 1})),
        (SCORING, "hidden_act", ("words",)),
    ],
)
def test_a_value_that_no_library_computes_as_it_stands_is_refused_by_its_key(
    config: dict[str, Any], key: str, values: tuple[Any, ...]
) -> None:
    read_config(config)
    for value in values:
        assert re.search(f"{key}.* in config.json", refusal(read_config, config, **{key: value}))


@pytest.mark.parametrize(
    "config",
    [
        BERT | {"layer_norm_eps": 1, "hidden_act": "gelu_new", "pad_token_id": -1},
        QWEN3 | {"rope_parameters": {"rope_theta": 5}, "rope_scaling": None, "pad_token_id": 10**6},
        {"model_type": "qwen2", "hidden_size": 12, "num_attention_heads": 6, "num_key_value_heads": 2},
        {"model_type": "xlnet", "max_position_embeddings": -1},
        V3 | {"lora_alpha": 0},
    ],
)
def test_what_libraries_agree_on_is_served(config: dict[str, Any]) -> None:
    read_config(config)


def test_where_the_library_is_not_installed_heads_may_have_a_size_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start from a compiled model does without it."""
    for name in ("architectures", "keys_of", "has_head_size"):
        monkeypatch.setattr(library, name, lambda _: frozenset())
    read_config(QWEN3 | {"hidden_size": 10, "num_attention_heads": 4, "head_dim": 8})


OTHERS = (
    *("embedding_gemma2_text", "flaubert", "funnel", "gemma4_text", "qwen2_moe", "qwen3_moe", "xlm", "bloom"),
    *("mixtral", "big_bird", "mobilebert", "gpt_neox", "openai-gpt", "rembert", "roformer", "xlnet"),
    *("llama4_text", "modernbert"),
)


@pytest.mark.parametrize("model_type", sorted({each.model_type for each in ARCHITECTURES} - {""} | set(OTHERS)))
def test_a_default_configuration_is_read(tmp_path: Path, model_type: str) -> None:
    CONFIG_MAPPING[model_type]().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert check_keys(config, ()) == ()
    found = model_folder.read(tmp_path, needs_weights=False)
    default = CONFIG_MAPPING[model_type]()
    assert found.hidden_size == getattr(default, "embedding_dim", default.hidden_size)


def test_layers_that_differ_in_more_than_their_sizes_are_refused(tmp_path: Path) -> None:
    CONFIG_MAPPING["embedding_gemma2_text"]().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for layer in ({"hidden_activation": "relu"}, {"sliding_window": 4}, 5):
        with pytest.raises(ModelError, match="'per_layer_config'"):
            check_keys({**config, "per_layer_config": {"05": layer}}, ())
    with pytest.raises(ModelError, match="'per_layer_config'"):
        check_keys({"model_type": "llama", "per_layer_config": {"05": {"head_dim": 8}}}, ())


_YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.1}
TEXT = {"hidden_size": 48, "num_attention_heads": 5, "head_dim": 16, "is_causal": False, "rope_parameters": _YARN}


def beside_images(text: dict[str, Any], **others: Any) -> dict[str, Any]:
    text = {"model_type": "ministral3", **TEXT, **text}
    return {**text, "model_type": "mistral3", "text_config": text, **others}


def test_the_keys_of_a_text_beside_images_are_those_of_its_own_architecture() -> None:
    served = architecture_of(Path("/nowhere"), beside_images({"made_up": 1}, vision_config={}, pooling="avg"))
    assert served.notes == tuple(
        f"config.json has keys that transformers' {model_type} does not read: {key}"
        for model_type, key in (("mistral3", "pooling"), ("ministral3", "made_up"))
    )
    assert check_keys(beside_images({"alibi": True}), ("alibi",)) == ()


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (beside_images({"alibi": True}), "'alibi' .* ministral3 does not compute"),
        (beside_images({}, is_causal=True), "'is_causal' .* mistral3 does not compute"),
        (beside_images({"rope_parameters": {**_YARN, "low_freq_factor": 1.0}}), "'low_freq_factor', which would be"),
        (beside_images({"num_key_value_heads": 3}), "'num_key_value_heads' .* does not divide"),
    ],
)
def test_a_wrong_key_of_a_text_beside_images_is_named(config: dict[str, Any], part: str) -> None:
    with pytest.raises(ModelError, match=part):
        architecture_of(Path("/nowhere"), config)

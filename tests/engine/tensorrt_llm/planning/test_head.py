"""Which models the engine takes, by their JSON files, and what it says of those that it would get wrong."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig

from engine.model.model_folder import ModelFolder
from engine.model.tasks import AnswerScore, LateInteraction, TokenScores, TokenTable
from engine.tensorrt_llm.planning.backbone import is_causal, window_of
from engine.tensorrt_llm.planning.head import (
    HeadKind,
    PlannedHead,
    head_of,
    notes_of,
    pad_id_of,
    without_trailing_padding,
)
from engine.tensorrt_llm.planning.plan import ModelFlags, plan
from engine.types import ModelError
from tests.engine import engines
from tests.engine.tensorrt_llm.header_models import CONFIG, write_model

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
_SCORER: dict[str, Any] = {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 3}


def refused(folder: ModelFolder) -> str:
    message = engines.refusal(lambda: head_of(folder))
    assert message.startswith("the tensorrt-llm engine ")
    assert "--engine " in message
    assert len(message) < 300
    return message


def test_the_library_reads_architectures_before_it_is_told_ours(tmp_path: Path) -> None:
    flags = ModelFlags(dtype="auto", quantization="none", is_stock=False)
    with pytest.raises(ModelError, match=r"^the tensorrt-llm engine looks for architectures in config\.json"):
        plan(write_model(tmp_path, architectures=None), [], flags)


def test_scores(tmp_path: Path) -> None:
    head = head_of(write_model(tmp_path, **_SCORER, pad_token_id=3))
    assert head == PlannedHead(kind=HeadKind.SCORE, pooling="last", is_causal=True, num_outputs=3)


@pytest.mark.parametrize("no_id", [8, None])
def test_answers(no_id: int | None, tmp_path: Path) -> None:
    folder = dataclasses.replace(write_model(tmp_path), heads=(AnswerScore(yes_id=7, no_id=no_id),))
    head = head_of(folder)
    assert head == PlannedHead(
        kind=HeadKind.ANSWER, pooling="last", is_causal=True, num_outputs=1, yes_id=7, no_id=no_id
    )
    beyond = dataclasses.replace(folder, heads=(AnswerScore(yes_id=100, no_id=no_id),))
    assert "among the 100 tokens" in refused(beyond)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"poolings": ("weightedmean",)}, "by weightedmean"),
        ({"poolings": ("mean", "cls")}, "by mean+cls"),
        ({"include_prompt": False}, "include_prompt"),
        ({"is_static": True}, "static"),
        ({"tokenizer_folder": "0_Transformer"}, "0_Transformer"),
        ({"heads": (TokenScores(labels=("a",)),)}, "gives rows for texts"),
        ({"late": LateInteraction()}, "gives rows for texts"),
        ({"late": LateInteraction(expansion_id=1)}, "gives rows for texts"),
        ({"query_table": TokenTable(folder="")}, "gives rows for texts"),
        ({"architecture": "bert"}, "no class for the architecture 'bert'"),
    ],
)
def test_what_no_head_is_served_with(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    assert named in refused(dataclasses.replace(write_model(tmp_path), **changes))


@pytest.mark.holds("TensorRT-LLM")
@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"model_type": "qwen2", "mlp_bias": True}, "mlp_bias"),
        ({"rotary_pct": 0.5}, "rotary_pct"),
        ({"qk_rope_head_dim": 64}, "qk_rope_head_dim"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn' for qwen3"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_type 'linear'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_type 'dynamic'"),
        ({"rope_scaling": LLAMA3}, "rope_type 'llama3' for qwen3"),
        ({"model_type": "qwen2", "rope_scaling": LLAMA3}, "rope_type 'llama3' for qwen2"),
        ({"layer_types": ["chunked_attention"] * 2, "use_sliding_window": True}, "layer_types"),
        ({"is_causal": False, **_SCORER, "pad_token_id": 3}, "is_causal"),
    ],
)
def test_what_would_be_computed_otherwise(config: dict[str, Any], named: str, tmp_path: Path) -> None:
    assert named in refused(write_model(tmp_path, **config))


@pytest.mark.parametrize(
    "config",
    [
        {"hidden_act": "swish"},
        {"mlp_bias": True, "attention_bias": True},
        {"rope_scaling": LLAMA3},
        {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
        {"rope_scaling": None, "rope_theta": 1e6},
        {"partial_rotary_factor": 1.0},
        {"sliding_window": 4},
    ],
)
def test_what_is_the_same_in_llama(config: dict[str, Any], tmp_path: Path) -> None:
    assert head_of(write_model(tmp_path, model_type="llama", **config)).is_causal


@pytest.mark.holds("TensorRT-LLM")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("said", [{}, {"is_causal": True}, {"is_causal": False}])
def test_the_mask_is_that_of_transformers(family: str, said: dict[str, Any], tmp_path: Path) -> None:
    config = {**CONFIG, "model_type": family, **said}
    library = AutoConfig.for_model(**config)
    assert is_causal(config) == bool(getattr(library, "is_causal", True))
    folder = write_model(tmp_path, model_type=family, sliding_window=None, **said)
    assert head_of(folder).is_causal == said.get("is_causal", True)


@pytest.mark.holds("TensorRT-LLM")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "said",
    [
        {},
        {"sliding_window": None},
        {"sliding_window": 6},
        {"sliding_window": 6, "use_sliding_window": True},
        {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 1},
        {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 2},
        {"use_sliding_window": True, "max_window_layers": 0},
        {"sliding_window": 6, "use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]},
        {"sliding_window": 6, "use_sliding_window": True, "layer_types": ["full_attention"] * 2},
        {"sliding_window": 6, "layer_types": ["full_attention", "sliding_attention"]},
    ],
)
def test_windows_are_those_of_transformers(family: str, said: dict[str, Any]) -> None:
    config = {**CONFIG, "model_type": family, **said}
    assert window_of(config, family) == _window_in_transformers(family, config)


def _window_in_transformers(family: str, config: dict[str, Any]) -> int | None:
    """As its attention layers ask for it."""
    if family == "llama":
        return None
    library = AutoConfig.for_model(**config)
    if family == "mistral":
        return library.sliding_window  # type: ignore[no-any-return]
    return library.sliding_window if "sliding_attention" in library.layer_types else None


def test_a_window_has_to_hold_the_longest_sequence(tmp_path: Path) -> None:
    folder = write_model(tmp_path, model_type="mistral", sliding_window=100)
    message = refused(folder)
    assert "one of 100 tokens (sliding_window)" in message
    assert "--max-input-length 100" in message
    shortened = dataclasses.replace(folder, max_seqlen=100)
    assert head_of(shortened).is_causal
    assert notes_of(shortened) == ("no sequence is longer than the window of 100 tokens",)


def test_positions_end_where_the_table_does(tmp_path: Path) -> None:
    folder = dataclasses.replace(write_model(tmp_path), max_seqlen=513)
    assert "512 tokens (max_position_embeddings)" in refused(folder)


def _tokenizer(folder: Path, *, end: str | None) -> None:
    vocabulary = {"[UNK]": 0, "</s>": 5, "<pad>": 6}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if end is not None:
        special = [(end, vocabulary[end])]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=special)
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("end", "eos", "noted"),
    [
        ("</s>", 5, False),
        ("</s>", [4, 5], False),
        ("<pad>", 5, True),
        (None, 5, True),
        (None, None, False),
    ],
)
def test_another_end_than_config_says_is_noted(end: str | None, eos: Any, noted: bool, tmp_path: Path) -> None:
    folder = write_model(tmp_path, eos_token_id=eos)
    _tokenizer(tmp_path, end=end)
    notes = notes_of(folder)
    assert bool(notes) == noted
    assert not noted or "eos_token_id (5): that row is pooled, as sentence-transformers does" in notes[0]
    assert notes_of(dataclasses.replace(folder, poolings=("mean",))) == ()


def test_padding_at_the_end_is_left_out_for_classifiers_alone(tmp_path: Path) -> None:
    assert pad_id_of(write_model(tmp_path / "a", **_SCORER, pad_token_id=3)) == 3
    assert pad_id_of(write_model(tmp_path / "b", **_SCORER)) is None
    assert pad_id_of(write_model(tmp_path / "c", pad_token_id=3)) is None


@pytest.mark.parametrize(
    ("token_ids", "left"),
    [([1, 2], [1, 2]), ([1, 3, 2, 3, 3], [1, 3, 2]), ([3, 3], [3]), ([3], [3])],
)
def test_what_is_left_ends_with_the_token_that_transformers_scores(token_ids: list[int], left: list[int]) -> None:
    assert without_trailing_padding(token_ids, 3) == left
    assert without_trailing_padding(token_ids, None) == token_ids

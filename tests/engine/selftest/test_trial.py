"""Which sequences a loaded model is tried with: beyond its window, up to where its frequencies hold, for a budget."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from engine.model import model_folder
from engine.model.detection.backbone import lengths_of_rope, telling_lengths
from engine.selftest import sample_ids as module
from engine.selftest.sample_ids import trial
from engine.types import ModelError
from tests.engine.folder_files import change
from tests.engine.tiny_models import save

ROPE = {"rope_type": "longrope", "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("config", "lengths"),
    [
        ({"sliding_window": 4096}, (5122,)),  # Mistral
        ({"sliding_window": 4096, "use_sliding_window": False}, ()),  # Qwen2
        ({"sliding_window": 4096, "layer_types": ["full_attention"]}, ()),  # Qwen3
        ({"sliding_window": 512, "use_bidirectional_attention": True}, (323,)),  # EmbeddingGemma: 257 to either side
        ({"model_type": "modernbert"}, (82,)),  # 64 to either side
        ({"model_type": "modernbert", "local_attention": 256}, (162,)),
        ({"attention_chunk_size": 64}, (82,)),  # Llama 4
        ({"attention_chunk_size": 64, "layer_types": ["chunked_attention", "full_attention"]}, (82,)),
        ({"attention_window_size": 64, "sliding_window": 128, "max_window_layers": 40}, (82, 162)),
        ({"attention_window": [64, 64]}, ()),  # a list is not read
        ({"sliding_window": 8192}, ()),  # no sequence reaches it
        ({"sliding_window": 8000}, (8192,)),
        ({"rope_scaling": ROPE}, (4096, 4098)),
        ({"model_type": "big_bird"}, (705,)),
        ({"model_type": "big_bird", "block_size": 16, "num_random_blocks": 0}, (81,)),
        ({"model_type": "big_bird", "block_size": 1024}, ()),  # no sequence is sparse
        ({"model_type": "big_bird", "attention_type": "original_full"}, ()),
        ({"rope_scaling": {"type": "dynamic"}, "max_position_embeddings": 8192}, (8192,)),
        ({"rope_scaling": {"type": "linear"}, "max_position_embeddings": 8192}, ()),
        ({}, ()),
    ],
)
def test_lengths_that_show_a_wrong_window(config: dict[str, Any], lengths: tuple[int, ...]) -> None:
    assert telling_lengths(config, 8192) == lengths


INSIDE = {"original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("places", "inside", "first"),
    [
        ({}, INSIDE, 32),
        ({"original_max_position_embeddings": 16}, {}, 16),
        ({"original_max_position_embeddings": 16}, INSIDE, 16),  # which of two counts depends on the class
        ({}, {}, 8192),
        ({"model_type": "phi3"}, {}, 4096),  # a default of its class
    ],
)
@pytest.mark.parametrize("by_layer", [False, True])
def test_where_longrope_changes(places: dict[str, Any], inside: dict[str, Any], first: int, *, by_layer: bool) -> None:
    rope: dict[str, Any] = {"rope_type": "longrope", **inside}
    said = {"sliding_attention": {"rope_type": "default"}, "full_attention": rope} if by_layer else rope
    config = {"max_position_embeddings": 8192, **places, "rope_parameters": said}
    assert list(lengths_of_rope(config)) == [("longrope", first)]


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_angles_that_change_at_a_length_that_only_the_class_knows(kind: str) -> None:
    config = {"rope_parameters": {"full_attention": {"rope_type": kind}}}
    with pytest.raises(ModelError, match=f"rope_type '{kind}' in config.json needs max_position_embeddings"):
        list(lengths_of_rope(config))


def test_what_costs_too_much_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save("mistral", tmp_path / "model")
    change(folder / "config.json", sliding_window=44)
    read = model_folder.read(folder)
    assert max(map(len, trial(read, kind="cpu", is_whole=False).sequences)) == 57
    monkeypatch.setitem(module._MAX_WORK, "cpu", 57 * module.num_layer_parameters(read) - 1)
    tried = trial(read, kind="cpu", is_whole=False)
    assert max(map(len, tried.sequences)) == 40
    assert "left out texts of 57 tokens" in tried.notes[0]
    assert trial(read, kind="cpu", seqlens=(60,)).notes == ()


def test_a_sparse_attention_that_is_left_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save("bert", tmp_path / "model")
    change(folder / "config.json", model_type="big_bird", block_size=8, num_random_blocks=0)
    read = dataclasses.replace(model_folder.read(folder), max_seqlen=64)
    assert trial(read, kind="cpu").notes == ()
    monkeypatch.setitem(module._MAX_WORK, "cpu", 41 * module.num_layer_parameters(read) - 1)
    assert "left out texts of 41 tokens" in trial(read, kind="cpu").notes[0]


def test_the_longest_is_tried_only_where_code_may_depend_on_it(tmp_path: Path) -> None:
    read = dataclasses.replace(model_folder.read(save("bert", tmp_path / "model")), max_seqlen=64)
    longest = [max(map(len, trial(read, kind="cpu", has_longest=has).sequences)) for has in (True, False)]
    assert longest == [64, 40]


def test_special_ids_are_tried_inside_and_beside(tmp_path: Path) -> None:
    folder = save("bert", tmp_path / "model")
    change(folder / "config.json", mask_token_id=70, image_token_ids=[71, 900])
    added = [{"id": token_id, "content": f"<{token_id}>"} for token_id in (72, 73, *range(80, 120), 900)]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added, "model": {"vocab": {}}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<72>", "sep_token": {"content": "<73>"}}))
    read = model_folder.read(folder)
    tried = trial(read, kind="cpu")
    inside = {int(token_id) for sequence in tried.special for token_id in sequence[1::2]}
    full = [{int(token_id) for each in batch for token_id in each[1:-1]} for batch in tried.neighbours]
    assert inside == set().union(*full)
    assert {0, 1, 2, 3, 70, 71, 72, 73} <= inside
    assert 900 not in inside
    assert 20 <= len(inside & set(range(80, 120))) <= 32
    assert [len(ids) for ids in full[:8]] == [1] * 8


@pytest.mark.parametrize("max_seqlen", [1, 2, 3, 6])
def test_special_ids_of_a_short_model(max_seqlen: int, tmp_path: Path) -> None:
    folder = save("bert", tmp_path / "model")
    tried = trial(dataclasses.replace(model_folder.read(folder), max_seqlen=max_seqlen), kind="cpu")
    sequences = [*tried.sequences, *tried.special, *(each for batch in tried.neighbours for each in batch)]
    assert all(1 <= len(each) <= max_seqlen for each in sequences)
    assert bool(tried.special) == bool(tried.neighbours) == (max_seqlen >= 3)

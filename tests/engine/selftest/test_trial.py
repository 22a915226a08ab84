"""Which sequences a loaded model is tried with: beyond its window, up to where its frequencies hold, for a budget."""

from pathlib import Path
from typing import Any

import pytest

from engine.model import model_folder
from engine.model.telling_lengths import telling_lengths
from engine.selftest import trial as module
from engine.selftest.trial import trial
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
        ({"rope_scaling": {"type": "dynamic"}, "max_position_embeddings": 8192}, (8192,)),
        ({"rope_scaling": {"type": "linear"}, "max_position_embeddings": 8192}, ()),
        ({}, ()),
    ],
)
def test_lengths_that_show_a_wrong_window(config: dict[str, Any], lengths: tuple[int, ...]) -> None:
    assert telling_lengths(config, 8192) == lengths


def test_what_costs_too_much_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save("mistral", tmp_path / "model")
    change(folder / "config.json", sliding_window=44)
    read = model_folder.read(folder)
    assert max(map(len, trial(read, kind="cpu").sequences)) == 57
    monkeypatch.setitem(module._MAX_WORK, "cpu", 57 * module.num_layer_parameters(read) - 1)
    tried = trial(read, kind="cpu")
    assert max(map(len, tried.sequences)) == 40
    assert "left out texts of 57 tokens" in tried.notes[0]
    assert trial(read, kind="cpu", seqlens=(60,)).notes == ()

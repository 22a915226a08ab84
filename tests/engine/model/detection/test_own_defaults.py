"""What each architecture's own class saves where nothing is said is refused nowhere."""

import json
from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING

from engine.model import model_folder
from engine.model.coverage import ARCHITECTURES
from engine.model.detection.config import check_keys
from engine.types import ModelError

OTHERS = (
    *(
        "embedding_gemma2_text",
        "flaubert",
        "funnel",
        "gemma4_text",
        "qwen2_moe",
        "qwen3_moe",
        "xlm",
        "bloom",
        "mixtral",
    ),
    *("big_bird", "mobilebert", "gpt_neox", "openai-gpt", "rembert", "roformer", "xlnet", "llama4_text", "modernbert"),
)


@pytest.mark.parametrize("model_type", sorted({each.model_type for each in ARCHITECTURES} - {""} | set(OTHERS)))
def test_a_default_configuration_is_read(tmp_path: Path, model_type: str) -> None:
    CONFIG_MAPPING[model_type]().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert check_keys(config, ()) == ()
    found = model_folder.read(tmp_path, needs_weights=False)
    assert found.hidden_size == CONFIG_MAPPING[model_type]().hidden_size


def test_layers_that_differ_in_more_than_their_sizes_are_refused(tmp_path: Path) -> None:
    CONFIG_MAPPING["embedding_gemma2_text"]().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for layer in ({"hidden_activation": "relu"}, {"sliding_window": 4}, 5):
        with pytest.raises(ModelError, match="'per_layer_config'"):
            check_keys({**config, "per_layer_config": {"05": layer}}, ())
    with pytest.raises(ModelError, match="'per_layer_config'"):
        check_keys({"model_type": "llama", "per_layer_config": {"05": {"head_dim": 8}}}, ())

"""NomicBERT's repositories in the words of their own code, which transformers' classes pass over."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from engine.model import model_folder
from engine.model.detection.architecture import _OLD_NOMIC
from engine.types import ModelError
from tests.engine.folder_files import write
from tests.engine.model.detection import shapes

# as nomic-embed-text-v1.5 has them
OLD = {
    "n_embd": 768,
    "n_head": 12,
    "n_inner": 3072,
    "n_layer": 12,
    "layer_norm_epsilon": 1e-12,
    "rotary_emb_base": 1000,
}
CODE = {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"}
SHARED = {"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "vocab_size": 30528, "n_positions": 8192}


def folder(path: Path, **fields: Any) -> Path:
    shapes.embedding(path)
    write(path / "config.json", {**SHARED, "auto_map": CODE, **fields})
    write(path / "d2" / "config.json", {"in_features": 768, "out_features": 4})
    shapes.weights(path / "d2" / "model.safetensors", linear__weight=(4, 768), linear__bias=(4,))
    return path


def test_what_nobody_says_is_what_transformers_takes() -> None:
    config = AutoConfig.for_model("nomic_bert")
    own = {**config.to_dict(), **config.rope_parameters}
    assert {old: own[name] for old, (name, _) in _OLD_NOMIC.items()} == {
        old: usual for old, (_, usual) in _OLD_NOMIC.items()
    }


def test_the_known_ones_are_native(tmp_path: Path) -> None:
    read = model_folder.read(folder(tmp_path, **OLD))
    assert (read.architecture, read.hidden_size) == ("nomic_bert", 768)
    assert "auto_map in config.json is not followed" in read.notes


@pytest.mark.parametrize(
    ("word", "value"),
    [("n_layer", 6), ("n_inner", 1536), ("rotary_emb_base", 10_000), ("layer_norm_epsilon", 1e-5)],
)
def test_what_would_be_passed_over_is_refused(word: str, value: float, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"^{word} in config.json is a word of the model's own code"):
        model_folder.read(folder(tmp_path, **{**OLD, word: value}))


def test_both_words_may_say_the_same(tmp_path: Path) -> None:
    said = {**OLD, "rotary_emb_base": 10_000, "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"}}
    assert model_folder.read(folder(tmp_path, **said)).architecture == "nomic_bert"

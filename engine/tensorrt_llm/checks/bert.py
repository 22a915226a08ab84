"""What upstream's BertForSequenceClassification is right about. It has no other BERT, and none of ours is on it.

It looks every tensor up by the name that transformers writes, computes exact GELU, adds position 0, 1, … and types, and
pools by the first token. It computes in float16 whatever it is told.
"""

from collections.abc import Iterator

from engine.model.json_files import Json, number_in, read_object
from engine.model.model_folder import ModelFolder
from engine.model.tasks import SequenceScores
from engine.tensorrt_llm.checks.scales import check_plain
from engine.tensorrt_llm.checks.tensors import tensors_in
from engine.tensorrt_llm.refusal import refusal

MODEL_TYPE = "bert"
_DEFAULTS = {"hidden_act": "gelu", "position_embedding_type": "absolute"}
_NUM_LAYERS = 12  # where config.json is silent
_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")
_LAYER = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)


def check(folder: ModelFolder) -> None:
    """Raises ModelError where it would compute something else than transformers does, or lacks a tensor."""
    config = read_object(folder.path / "config.json")
    for name, computed in _DEFAULTS.items():
        if config.get(name, computed) != computed:
            raise refusal(f"computes {computed} in BERT alone, and config.json has another {name}")
    if len(folder.heads) != 1 or not isinstance(folder.heads[0], SequenceScores):
        raise refusal(f"gives one row of scores by BERT, and the model is for {folder.task}")
    check_plain(tensors_in(folder.path), _names(config))


def _names(config: Json) -> Iterator[str]:
    """One after the other, as config.json may speak of a billion layers."""
    yield from (f"bert.embeddings.{table}.weight" for table in _TABLES)
    yield from _of_module("bert.embeddings.LayerNorm", "bert.pooler.dense", "classifier")
    for index in range(number_in(config, "num_hidden_layers") or _NUM_LAYERS):
        yield from _of_module(*(f"bert.encoder.layer.{index}.{part}" for part in _LAYER))


def _of_module(*modules: str) -> Iterator[str]:
    for module in modules:
        yield from (f"{module}.weight", f"{module}.bias")

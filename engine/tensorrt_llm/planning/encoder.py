"""Checks that the library's BERT computes what transformers does, and that the weights have all of its tensors.

RoBERTa and XLM-RoBERTa are BERT with other positions, which our class numbers. Upstream's BERT computes exact GELU,
adds a position and a token type to each token, and reads config.json for sizes alone. Its linear layers are plain.
"""

from collections.abc import Iterator

from engine.model.json_files import Json, number_in, read_object
from engine.model.model_folder import ModelFolder
from engine.tensorrt_llm.planning.families import refusal
from engine.tensorrt_llm.planning.tensors import check_plain, tensors_in

_COMPUTED = {"hidden_act": "gelu", "position_embedding_type": "absolute"}
_DECODING = ("is_decoder", "add_cross_attention")  # transformers' layers then see only what comes before a token
_NUM_LAYERS = 12  # if config.json does not say
_NUM_POSITIONS = 512  # likewise
_PADDING_IDX = 1  # likewise
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
_CLASSIFIER = ("classifier.dense", "classifier.out_proj")
PREFIX = "roberta."  # of the backbone's tensors in a file of a whole RoBERTa or XLM-RoBERTa


def check_layers(config: Json) -> None:
    """Raises ModelError if upstream's BERT would compute other layers."""
    for name, computed in _COMPUTED.items():
        if config.get(name, computed) != computed:
            raise refusal(f"computes {computed} in BERT alone, and config.json has another {name}")


def padding_idx_of(config: Json, *, max_seqlen: int) -> int:
    """RoBERTa's: positions are numbered from it + 1. max_seqlen: tokens of the longest sequence.

    Raises ModelError if the layers or the positions would be others.
    """
    check_layers(config)
    for name in _DECODING:
        if config.get(name):
            raise refusal(f"lets each token see all in RoBERTa, and config.json has {name}")
    padding_idx = config.get("pad_token_id", _PADDING_IDX)
    if type(padding_idx) is not int or padding_idx < 0:
        raise refusal("numbers RoBERTa's positions from pad_token_id, which config.json lacks")
    num_positions = (number_in(config, "max_position_embeddings") or _NUM_POSITIONS) - padding_idx - 1
    if max_seqlen > num_positions:
        raise refusal(
            f"has positions for {num_positions} tokens (max_position_embeddings) and sequences may have {max_seqlen}: "
            f"take --max-input-length {num_positions}"
        )
    return padding_idx


def check_tensors(folder: ModelFolder) -> None:
    """Raises ModelError if a tensor of a RoBERTa is missing or not stored in plain numbers."""
    tensors = tensors_in(folder.path)
    prefix = PREFIX if any(name.startswith(PREFIX) for name in tensors) else ""
    check_plain(tensors, backbone_names(read_object(folder.path / "config.json"), prefix))
    if folder.heads:
        check_plain(tensors, weight_and_bias(*_CLASSIFIER))


def backbone_names(config: Json, prefix: str) -> Iterator[str]:
    """The tensors of a BERT, one by one, because config.json may say a billion layers."""
    yield from (f"{prefix}embeddings.{table}.weight" for table in _TABLES)
    yield from weight_and_bias(f"{prefix}embeddings.LayerNorm")
    for index in range(number_in(config, "num_hidden_layers") or _NUM_LAYERS):
        yield from weight_and_bias(*(f"{prefix}encoder.layer.{index}.{part}" for part in _LAYER))


def weight_and_bias(*modules: str) -> Iterator[str]:
    """The two tensors of each module."""
    for module in modules:
        yield from (f"{module}.weight", f"{module}.bias")

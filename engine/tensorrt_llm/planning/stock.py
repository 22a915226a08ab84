"""Upstream's own model classes, if they give the rows that we need: a cross-check and a fallback for operators."""

from collections.abc import Iterator

from engine.model.json_files import Json, read_object
from engine.model.known_code.qwen2 import REWARD
from engine.model.model_folder import ModelFolder
from engine.model.tasks import SequenceScores, Task
from engine.tensorrt_llm.planning import encoder
from engine.tensorrt_llm.planning.families import refusal
from engine.tensorrt_llm.planning.head import HeadKind, head_of, pad_id_of
from engine.tensorrt_llm.planning.model_class import ModelClass
from engine.tensorrt_llm.planning.tensors import check_plain, tensors_in
from engine.types import ModelError, OutputKind

STOCK = "stock"  # value of --tensorrt-llm-model-class
KNOWN_CLASSES = frozenset((REWARD,))  # in upstream, but not in transformers
_BERT, _EMBEDDING = "BertForSequenceClassification", "Qwen3ForTextEmbedding"


def stock(folder: ModelFolder) -> ModelClass:
    """Raises ModelError if upstream has no class for the model, or its rows would be wrong."""
    if folder.architecture == _BERT_TYPE and folder.architectures[:1] == (_BERT,):
        return _bert(folder)
    if folder.architectures[:1] == (REWARD,):
        return _reward(folder)
    if folder.architecture == "qwen3" and folder.task is Task.EMBED:
        return _qwen3(folder)
    raise ModelError(
        f"--tensorrt-llm-model-class stock has no class for {folder.architecture} with task {folder.task}; it has "
        f"{_BERT}, {_EMBEDDING} and {REWARD}"
    )


def _bert(folder: ModelFolder) -> ModelClass:
    _check_bert(folder)
    return ModelClass(
        architecture=_BERT,
        family=None,
        output=OutputKind.LOGITS,
        num_outputs=_num_labels(folder),
        takes_token_types=True,
        dtype="float16",
        note=f"upstream's {_BERT}, which computes in float16",
    )


def _reward(folder: ModelFolder) -> ModelClass:
    """Two layers of scores on the last token: `score.0`, ReLU, `score.2`."""
    head = head_of(folder)
    if (folder.architecture, head.kind, head.num_outputs, head.is_causal) != ("qwen2", HeadKind.SCORE, 1, True):
        raise refusal(f"serves {REWARD} as a causal qwen2 with one score, and config.json says otherwise")
    return ModelClass(
        architecture=REWARD,
        family=None,
        output=OutputKind.LOGITS,
        num_outputs=1,
        pad_id=pad_id_of(folder),  # as in the model's own code
        note=f"upstream's {REWARD}",
    )


def _qwen3(folder: ModelFolder) -> ModelClass:
    head = head_of(folder)
    if (head.kind, head.pooling, head.is_causal) != (HeadKind.EMBED, "last", True) or not folder.normalize:
        raise ModelError(
            f"--tensorrt-llm-model-class stock: {_EMBEDDING} gives the last token's row, scaled to length 1, "
            "of a causal model, and this one is not of that kind; leave the flag out"
        )
    return ModelClass(
        architecture=_EMBEDDING,
        family=None,
        output=OutputKind.POOLED,
        num_outputs=folder.hidden_size,
        note=f"upstream's {_EMBEDDING}",
    )


def _num_labels(folder: ModelFolder) -> int:
    (labels,) = [head.labels for head in folder.heads if isinstance(head, SequenceScores)]
    return len(labels)


_BERT_TYPE = "bert"


def _check_bert(folder: ModelFolder) -> None:
    """Raises ModelError if upstream's BERT would differ from transformers', or a tensor is missing.

    It looks every tensor up by the name that transformers writes, computes exact GELU, adds position 0, 1, … and types,
    pools by the first token, and computes in float16 whatever dtype it is given. Upstream has no other BERT.
    """
    config = read_object(folder.path / "config.json")
    encoder.check_layers(config)
    if len(folder.heads) != 1 or not isinstance(folder.heads[0], SequenceScores):
        raise refusal(f"gives one row of scores by BERT, and the model is for {folder.task}")
    check_plain(tensors_in(folder.path), _bert_names(config))


def _bert_names(config: Json) -> Iterator[str]:
    yield from encoder.backbone_names(config, "bert.")
    yield from encoder.weight_and_bias("bert.pooler.dense", "classifier")

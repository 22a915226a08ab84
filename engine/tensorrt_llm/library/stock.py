"""Upstream's own classes of models, where one gives rows as we need them: a cross-check, and a way out."""

from engine.model.detection.architecture import REWARD
from engine.model.model_folder import ModelFolder
from engine.model.tasks import SequenceScores, Task
from engine.tensorrt_llm.checks import bert, fitness
from engine.tensorrt_llm.library.head import HeadKind
from engine.tensorrt_llm.library.served import Served
from engine.tensorrt_llm.library.trailing import pad_id_of
from engine.tensorrt_llm.refusal import refusal
from engine.types import ModelError, OutputKind

STOCK = "stock"  # of --tensorrt-llm-model-class
KNOWN_CLASSES = frozenset((REWARD,))  # which upstream has, and transformers has not
_BERT, _EMBEDDING = "BertForSequenceClassification", "Qwen3ForTextEmbedding"


def stock(folder: ModelFolder) -> Served:
    """Raises ModelError where upstream has no class for it, or one that is not right about it."""
    if folder.architecture == bert.MODEL_TYPE and folder.architectures[:1] == (_BERT,):
        return _bert(folder)
    if folder.architectures[:1] == (REWARD,):
        return _reward(folder)
    if folder.architecture == "qwen3" and folder.task is Task.EMBED:
        return _qwen3(folder)
    raise ModelError(
        f"--tensorrt-llm-model-class stock has no class for {folder.architecture} with task {folder.task}; it has "
        f"{_BERT}, {_EMBEDDING} and {REWARD}"
    )


def _bert(folder: ModelFolder) -> Served:
    bert.check(folder)
    return Served(
        architecture=_BERT,
        family=None,
        output=OutputKind.LOGITS,
        num_outputs=_num_labels(folder),
        takes_token_types=True,
        dtype="float16",
        note=f"upstream's {_BERT}, which computes in float16",
    )


def _reward(folder: ModelFolder) -> Served:
    """Two layers of scores on the last token: `score.0`, ReLU, `score.2`."""
    head = fitness.head_of(folder)
    if (folder.architecture, head.kind, head.num_outputs, head.is_causal) != ("qwen2", HeadKind.SCORE, 1, True):
        raise refusal(f"gives one score of a causal qwen2 by {REWARD}, and config.json has it of another kind")
    return Served(
        architecture=REWARD,
        family=None,
        output=OutputKind.LOGITS,
        num_outputs=1,
        pad_id=pad_id_of(folder),  # as the model's own code has it
        note=f"upstream's {REWARD}",
    )


def _qwen3(folder: ModelFolder) -> Served:
    head = fitness.head_of(folder)
    if (head.kind, head.pooling, head.is_causal) != (HeadKind.EMBED, "last", True) or not folder.normalize:
        raise ModelError(
            f"--tensorrt-llm-model-class stock: {_EMBEDDING} gives the last token's row, scaled to length 1, "
            "of a causal model, and this one is not of that kind; leave the flag out"
        )
    return Served(
        architecture=_EMBEDDING,
        family=None,
        output=OutputKind.POOLED,
        num_outputs=folder.hidden_size,
        note=f"upstream's {_EMBEDDING}",
    )


def _num_labels(folder: ModelFolder) -> int:
    (labels,) = [head.labels for head in folder.heads if isinstance(head, SequenceScores)]
    return len(labels)

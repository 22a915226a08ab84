"""Plans how a model is computed, and in which dtype, from its files, the GPUs and the flags. Loads and writes nothing.

The server asks before it starts anything, the engine's process before it imports the library, and `embedline doctor`.
A plan has the model class of TensorRT-LLM that computes the model: ours, or upstream's own where it gives the rows that
we need, as a cross-check and a fallback for operators.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from engine.machine.cuda_driver import Gpu
from engine.model.json_files import read_object
from engine.model.known_code.qwen2 import REWARD
from engine.model.model_folder import ModelFolder
from engine.model.tasks import SequenceScores, Task
from engine.tensorrt_llm.planning import backbone, checkpoint
from engine.tensorrt_llm.planning.checkpoint import Checkpoint, check_plain, tensors_in
from engine.tensorrt_llm.planning.families import FAMILIES, Family, family_of, refusal
from engine.tensorrt_llm.planning.head import CONFIG_KEY, HeadKind, PlannedHead, head_of, pad_id_of
from engine.tensorrt_llm.planning.quantization import BLOCKS
from engine.types import ModelError, OutputKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelClass:
    """A model class. model_kwargs: set on the checkpoint's configuration before the class is looked up."""

    architecture: str  # the class's name in the library's table
    family: Family | None  # of our class, which is registered first; None = upstream's own class
    config: dict[str, Any] = field(default_factory=dict)
    output: OutputKind
    num_outputs: int  # numbers a row
    takes_token_types: bool = False  # as `token_type_ids` [T]
    pad_id: int | None = None  # a token that is removed from the end of sequences; see `trailing`
    dtype: str | None = None  # the only dtype of the class; None = the plan's dtype
    note: str

    @property
    def model_kwargs(self) -> dict[str, Any]:
        """The model class as JSON."""
        return {"architectures": [self.architecture], **self.config}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlags:
    """The flags that decide how a model is computed."""

    dtype: str
    quantization: str
    is_stock: bool  # --tensorrt-llm-model-class stock: upstream's own class
    records_graphs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputePlan:
    """How the model will be computed."""

    model_class: ModelClass
    stored: Checkpoint  # the stored weights
    makes_copy: bool  # whether a block-FP8 copy replaces them
    dtype: str


def plan(folder: ModelFolder, gpus: Iterable[Gpu], flags: ModelFlags) -> ComputePlan:
    """The plan. Raises ModelError with one line if the model can't be served on each of these GPUs."""
    if folder.is_translated:
        raise refusal("reads config.json as it is, and the file has words of the model's own code")
    if not folder.architectures:  # the library would fail before it looks up the class that it is told
        raise refusal("looks for architectures in config.json, which lacks the entry")
    model_class = stock(folder) if flags.is_stock else ours(folder)
    if model_class.takes_token_types and flags.records_graphs:
        raise ModelError(f"--tensorrt-llm-cuda-graphs is not for {model_class.architecture}, which has token types")
    dtype = _dtype(flags.dtype, folder.architecture)
    stored = checkpoint.classify(folder)
    makes_copy = _makes_copy(stored, flags.quantization)
    if makes_copy and not _has_quantized_layers(folder.architecture):
        raise refusal(f"has no quantized layers for {folder.architecture}, and --quantization fp8 asks for them")
    computed = Checkpoint(algorithm=BLOCKS) if makes_copy else stored
    checkpoint.check_dtype(computed, dtype)
    for gpu in gpus:
        checkpoint.check_gpu(computed, gpu)
    return ComputePlan(model_class=model_class, stored=stored, makes_copy=makes_copy, dtype=dtype)


def _dtype(asked: str, architecture: str) -> str:
    if asked not in _DTYPES:
        raise ModelError(
            f"--dtype {asked} is not for --engine tensorrt-llm, which has {', '.join(_DTYPES)}; "
            "--engine transformers computes in it"
        )
    family = FAMILIES.get(architecture)
    if asked == "float16" and family is not None and not family.has_float16:
        raise ModelError(
            f"--dtype float16 is not for {architecture} in the tensorrt-llm engine, which computes it in bfloat16 "
            "alone; leave it out"
        )
    return _DTYPES[asked]


def _has_quantized_layers(architecture: str) -> bool:
    family = FAMILIES.get(architecture)
    return family is not None and not family.is_encoder


def _makes_copy(stored: Checkpoint, quantization: str) -> bool:
    """Whether to make a block-FP8 copy. Raises ModelError if quantized weights do not match --quantization."""
    if not stored.algorithm:
        return quantization == "fp8"
    if quantization == "none":
        raise ModelError(
            f"{stored.note}, and --quantization none asks for weights that are not; take the model's plain weights"
        )
    if quantization == "fp8" and "FP8" not in stored.algorithm:
        raise ModelError(f"{stored.note}, not as --quantization fp8; leave it out, or take the model's plain weights")
    return False


# A window is asked for by layers that attend to all, too; `fitness` has seen that no sequence is longer than it.
_NO_WINDOW = {"mistral": {"sliding_window": None}}


def ours(folder: ModelFolder) -> ModelClass:
    """Our own class for the model. Raises ModelError if its rows would be wrong."""
    family, head = family_of(folder.architecture), head_of(folder)
    return ModelClass(
        architecture=family.architecture,
        family=family,
        config={**_NO_WINDOW.get(family.model_type, {}), CONFIG_KEY: head.to_config()},
        output=OutputKind.POOLED if head.kind is HeadKind.EMBED else OutputKind.LOGITS,
        num_outputs=head.num_outputs,
        pad_id=pad_id_of(folder),
        note=f"Embedline's class on {family.backbone}: {_described(head)}",
    )


def _described(head: PlannedHead) -> str:
    made = {HeadKind.EMBED: "the row", HeadKind.SCORE: "scores", HeadKind.ANSWER: "yes less no"}
    mask = "each token sees those before it" if head.is_causal else "each token sees all"
    return f"{made[head.kind]} of the {head.pooling} pooling, {mask}"


STOCK = "stock"  # value of --tensorrt-llm-model-class
KNOWN_CLASSES = frozenset((REWARD,))  # in upstream, but not in transformers
_BERT, _EMBEDDING = "BertForSequenceClassification", "Qwen3ForTextEmbedding"


def stock(folder: ModelFolder) -> ModelClass:
    """Upstream's class for a model. Raises ModelError if it has none, or its rows would be wrong."""
    if folder.architecture == "bert" and folder.architectures[:1] == (_BERT,):
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
    scores = _scores_of_bert(folder)
    return ModelClass(
        architecture=_BERT,
        family=None,
        output=OutputKind.LOGITS,
        num_outputs=len(scores.labels),
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


def _scores_of_bert(folder: ModelFolder) -> SequenceScores:
    """The head. Raises ModelError if upstream's BERT would differ from transformers', or a tensor is missing.

    It looks every tensor up by the name that transformers writes, computes exact GELU, adds position 0, 1, … and types,
    pools by the first token, and computes in float16 whatever dtype it is given. Upstream has no other BERT.
    """
    config = read_object(folder.path / "config.json")
    backbone.check_bert_layers(config)
    if len(folder.heads) != 1 or not isinstance(folder.heads[0], SequenceScores):
        raise refusal(f"gives one row of scores by BERT, and the model is for {folder.task}")
    heads = backbone.weight_and_bias("bert.pooler.dense", "classifier")
    check_plain(tensors_in(folder.path), itertools.chain(backbone.backbone_names(config, "bert."), heads))
    return folder.heads[0]


_DTYPES = {"auto": "bfloat16", "bfloat16": "bfloat16", "float16": "float16"}

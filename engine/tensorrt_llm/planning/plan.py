"""Plans how a model is computed, and in which dtype, from its files, the GPUs and the flags. Loads and writes nothing.

The server asks before it starts anything, the engine's process before it imports the library, and `embedline doctor`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.machine.cuda_driver import Gpu
from engine.model.model_folder import ModelFolder
from engine.tensorrt_llm.planning import checkpoint
from engine.tensorrt_llm.planning.checkpoint import Checkpoint
from engine.tensorrt_llm.planning.families import FAMILIES, refusal
from engine.tensorrt_llm.planning.head import check_config
from engine.tensorrt_llm.planning.model_class import ModelClass, ours
from engine.tensorrt_llm.planning.quantization import BLOCKS
from engine.tensorrt_llm.planning.stock import stock
from engine.types import ModelError

_DTYPES = {"auto": "bfloat16", "bfloat16": "bfloat16", "float16": "float16"}


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
    check_config(folder)
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

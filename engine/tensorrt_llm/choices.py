"""What was asked for, checked without importing tensorrt_llm: nothing is on the GPU yet when it is refused.

What each check says is with the thing that it looks at: `fitness` the model, `checkpoint` its weights, `package` what
is installed.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import model_folder
from engine.cuda_driver import Gpu
from engine.devices import CUDA, kind_of
from engine.model_folder import ModelFolder
from engine.tensorrt_llm import checkpoint, fitness, package
from engine.tensorrt_llm.algorithm import BLOCKS
from engine.tensorrt_llm.checkpoint import Checkpoint
from engine.tensorrt_llm.families import FAMILIES
from engine.tensorrt_llm.served import Served, ours
from engine.tensorrt_llm.stock import KNOWN_CLASSES, stock
from engine.types import ModelError

_MAX_NUM_TOKENS = 16_384  # of a batch, where nobody says otherwise: BEI's default for encoders
_MAX_NUM_SEQS = 32  # likewise: "performance degradation with batch size >> 32", as BEI's start command has it
_DTYPES = {"auto": "bfloat16", "bfloat16": "bfloat16", "float16": "float16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """All that loading needs to know."""

    folder: ModelFolder
    served: Served  # which class computes it, and what comes out
    weights: Path  # the folder that is loaded: the model's own, or a quantized copy
    checkpoint: Checkpoint
    package: package.Package
    gpu: Gpu
    dtype: str
    max_num_tokens: int
    max_num_seqs: int
    records_graphs: bool
    memory_share: float  # of the GPU's memory: what this process may take
    notes: tuple[str, ...]


def choose(options: dict[str, Any]) -> Choices:
    """See engine.tensorrt_llm.engine.load for the options. Raises ModelError with one line."""
    found = package.find()
    is_stock = options.get("model_class") == "stock"
    known = KNOWN_CLASSES if is_stock else frozenset()
    folder = model_folder.read(
        options["path"], pooling=options["pooling"], task=options.get("task"), known_classes=known
    )
    asked = options.get("max_seqlen") or folder.max_seqlen
    folder = dataclasses.replace(folder, max_seqlen=min(asked, folder.max_seqlen))
    served = served_of(folder, is_stock=is_stock)
    if served.takes_token_types and options.get("records_graphs"):
        raise ModelError(f"--tensorrt-llm-cuda-graphs is not for {served.architecture}, which has token types")
    gpu = _gpu(options)
    dtype = _dtype(options["dtype"], folder.architecture)
    stored, weights, notes = _weights(folder, gpu, options)
    checkpoint.check_dtype(stored, dtype)
    return Choices(
        folder=folder,
        served=served,
        weights=weights,
        checkpoint=stored,
        package=found,
        gpu=gpu,
        dtype=dtype,
        max_num_tokens=max(options["max_num_tokens"] or _MAX_NUM_TOKENS, folder.max_seqlen),
        max_num_seqs=options["max_num_seqs"] or _MAX_NUM_SEQS,
        records_graphs=bool(options.get("records_graphs")),
        memory_share=options.get("memory_share", 1.0),
        notes=(*notes, *fitness.notes_of(folder)),
    )


def served_of(folder: ModelFolder, *, is_stock: bool) -> Served:
    """Raises ModelError where neither our class nor, asked for, upstream's own is right about the model."""
    fitness.check_config(folder)
    return stock(folder) if is_stock else ours(folder)


def _gpu(options: dict[str, Any]) -> Gpu:
    if kind_of(options["device"]) != CUDA or not options.get("gpu"):
        raise ModelError("--engine tensorrt-llm needs an NVIDIA GPU; --engine auto serves most models on the CPU")
    found = options["gpu"]
    return Gpu(found["index"], found["name"], (found["capability"][0], found["capability"][1]), found["num_bytes"])


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


def _weights(folder: ModelFolder, gpu: Gpu, options: dict[str, Any]) -> tuple[Checkpoint, Path, tuple[str, ...]]:
    """How the weights are stored, where those are that are to be loaded, and a line about it."""
    asked = options.get("quantization", "auto")
    stored = checkpoint.classify(folder)
    checkpoint.check_gpu(stored, gpu)
    if stored.algorithm:
        if asked == "none":
            raise ModelError(
                f"{stored.note}, and --quantization none asks for them as they were before; take the model's plain "
                "weights"
            )
        if asked == "fp8" and "FP8" not in stored.algorithm:
            raise ModelError(
                f"{stored.note}, not as --quantization fp8; leave it out, or take the model's plain weights"
            )
        return stored, folder.weights_folder, (stored.note,)
    if asked != "fp8":
        return stored, folder.weights_folder, ()
    checkpoint.check_gpu(Checkpoint(algorithm=BLOCKS), gpu)
    from engine.quantize.cached import block_fp8  # imports torch

    copy = block_fp8(folder.weights_folder, cache_dir=options.get("cache_dir"))
    # what the model is for stays as it was found: the copy has another name, and no modules beside the Transformer
    copied = dataclasses.replace(folder, path=copy, tokenizer_folder="")
    return checkpoint.classify(copied), copy, (f"--quantization fp8: a block-FP8 copy in {copy}",)

"""The options of `load`, checked without importing tensorrt_llm: nothing is on the GPU yet when a model is refused."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from engine.machine.cuda_driver import Gpu
from engine.messages import LoadOptions
from engine.model.model_folder import ModelFolder, read_with
from engine.registry import CUDA
from engine.tensorrt_llm.planning import checkpoint, package
from engine.tensorrt_llm.planning.checkpoint import Checkpoint
from engine.tensorrt_llm.planning.head import notes_of
from engine.tensorrt_llm.planning.plan import KNOWN_CLASSES, STOCK, ComputePlan, ModelClass, ModelFlags, plan
from engine.types import ModelError

_MAX_NUM_TOKENS = 16_384  # of a batch, by default: BEI's default for encoders
_MAX_NUM_SEQS = 256  # likewise, and to be measured: BEI's start command warns of "batch size >> 32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """All that loading needs to know."""

    folder: ModelFolder
    model_class: ModelClass  # which class computes it, and what comes out
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


def choose(options: LoadOptions) -> Choices:
    """Where `weights_to_quantize` names a folder, `options.weights` is a block-FP8 copy of it.

    Raises ModelError with one line.
    """
    found, folder, gpu, planned = _planned(options)
    stored, weights, notes = _weights(folder, planned, options.weights)
    return Choices(
        folder=folder,
        model_class=planned.model_class,
        weights=weights,
        checkpoint=stored,
        package=found,
        gpu=gpu,
        dtype=planned.dtype,
        max_num_tokens=max(options.max_num_tokens or _MAX_NUM_TOKENS, folder.max_seqlen),
        max_num_seqs=options.max_num_seqs or _MAX_NUM_SEQS,
        records_graphs=options.records_graphs,
        memory_share=options.memory_share,
        notes=(*notes, *notes_of(folder)),
    )


def weights_to_quantize(options: LoadOptions) -> Path | None:
    """The folder whose weights the engine computes with in block FP8; None where it takes the weights as they are.

    Raises ModelError with one line.
    """
    _, folder, _, planned = _planned(options)
    return folder.weights_folder if planned.makes_copy else None


def _planned(options: LoadOptions) -> tuple[package.Package, ModelFolder, Gpu, ComputePlan]:
    found = package.find()
    folder = _folder(options)
    gpu = _gpu(options)
    return found, folder, gpu, plan(folder, [gpu], _flags(options))


def _flags(options: LoadOptions) -> ModelFlags:
    return ModelFlags(
        dtype=options.dtype,
        quantization=options.quantization,
        is_stock=options.model_class == STOCK,
        records_graphs=options.records_graphs,
    )


def _folder(options: LoadOptions) -> ModelFolder:
    return read_with(options, known_classes=KNOWN_CLASSES if options.model_class == STOCK else frozenset())


def _gpu(options: LoadOptions) -> Gpu:
    if options.kind != CUDA or options.gpu is None:
        raise ModelError("--engine tensorrt-llm needs an NVIDIA GPU; --engine auto serves most models on the CPU")
    return options.gpu


def _weights(folder: ModelFolder, planned: ComputePlan, copy: str | None) -> tuple[Checkpoint, Path, tuple[str, ...]]:
    """How the weights to load are stored, where they are, and a note about them."""
    if not planned.makes_copy:
        note = planned.stored.note
        return planned.stored, folder.weights_folder, (note,) if note else ()
    assert copy is not None, "engine.fp8_copy makes it before the engine is loaded"
    # The task stays that of the model's own folder: the copy has another name, and no modules beside the Transformer.
    copied = dataclasses.replace(folder, path=Path(copy), tokenizer_folder="")
    return checkpoint.classify(copied), copied.path, (f"--quantization fp8: a block-FP8 copy in {copy}",)

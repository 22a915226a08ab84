"""The tensorrt-llm engine before it is loaded, and the options of `load`, checked without importing tensorrt_llm:
nothing is on the GPU yet when a model is refused.
"""

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine import offer
from engine.machine.cuda_driver import Gpu
from engine.machine.failures import one_line
from engine.messages import LoadOptions
from engine.model.model_folder import ModelFolder, read_with
from engine.offer import Flags, ServingTarget
from engine.registry import CUDA, TENSORRT_LLM, EngineRow
from engine.tensorrt_llm.planning import checkpoint, package
from engine.tensorrt_llm.planning.checkpoint import Checkpoint
from engine.tensorrt_llm.planning.head import notes_of
from engine.tensorrt_llm.planning.plan import KNOWN_CLASSES, STOCK, ComputePlan, ModelClass, ModelFlags, plan
from engine.types import ModelError

_MAX_NUM_TOKENS = 16_384  # of a batch, by default: BEI's default for encoders
_MAX_NUM_SEQS = 256  # likewise, and to be measured: BEI's start command warns of "batch size >> 32"


@dataclass(frozen=True, kw_only=True)
class Options(offer.Options):
    """Options that only this engine reads."""

    tensorrt_llm_model_class: str = "embedline"  # or "stock"
    tensorrt_llm_cuda_graphs: bool = False


class Offer(offer.Offer):
    """Embeddings and scores by TensorRT-LLM, on GPUs."""

    def known_classes(self, flags: object) -> frozenset[str]:
        """The classes that upstream's own class computes."""
        return KNOWN_CLASSES if Options.of(flags).tensorrt_llm_model_class == STOCK else frozenset()

    def missing(self, row: EngineRow, target: ServingTarget) -> Iterator[str]:
        """The library brings everything else."""
        version = target.installed.get(package.NAME)
        if version is None and target.python == sys.executable:
            package.find()  # says in its own words that there is none
        if version is None:
            yield f"the package {package.NAME} is not installed for {target.python}"
        elif package.is_too_old(version):
            yield f"{package.NAME} {version} is too old: it has no LLM.encode"

    def check(self, row: EngineRow, target: ServingTarget, folder: ModelFolder) -> Iterator[str]:
        """The checks that are made when it loads the model."""
        plan(folder, target.cuda.gpus, _flags(target.flags, Options.of(target.flags)))
        yield from ()


OFFER = Offer(options=Options, is_asked_first=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRTLLMConfig:
    """All choices that loading needs to know."""

    folder: ModelFolder
    model_class: ModelClass  # which class computes it, and what comes out
    weights: Path  # the folder that is loaded: the model's own, or a quantized copy
    checkpoint: Checkpoint
    version: str  # of the library; "" if its files do not say
    gpu: Gpu
    dtype: str
    max_num_tokens: int
    max_num_seqs: int
    records_graphs: bool
    memory_share: float  # of the GPU's memory: what this process may take
    notes: tuple[str, ...]


def choose(options: LoadOptions) -> TensorRTLLMConfig:
    """Plan the loading. With --quantization fp8 it takes minutes the first time, where weights are copied in block FP8.
    The copy is not removed while this process lives. Raises ModelError with one line."""
    own = options.own_of(TENSORRT_LLM, Options)
    version, folder, gpu = package.find(), read_with(options, known_classes=OFFER.known_classes(own)), _gpu(options)
    planned = plan(folder, [gpu], _flags(options, own))
    stored, weights, notes = _weights(folder, planned, options.cache_dir)
    return TensorRTLLMConfig(
        folder=folder,
        model_class=planned.model_class,
        weights=weights,
        checkpoint=stored,
        version=version,
        gpu=gpu,
        dtype=planned.dtype,
        max_num_tokens=max(options.max_num_tokens or _MAX_NUM_TOKENS, folder.max_seqlen),
        max_num_seqs=options.max_num_seqs or _MAX_NUM_SEQS,
        records_graphs=own.tensorrt_llm_cuda_graphs,
        memory_share=options.memory_share,
        notes=(*notes, *notes_of(folder)),
    )


def _flags(flags: Flags | LoadOptions, own: Options) -> ModelFlags:
    return ModelFlags(
        dtype=flags.dtype,
        quantization=flags.quantization,
        is_stock=own.tensorrt_llm_model_class == STOCK,
        records_graphs=own.tensorrt_llm_cuda_graphs,
    )


def _gpu(options: LoadOptions) -> Gpu:
    if options.kind != CUDA or options.gpu is None:
        raise ModelError("--engine tensorrt-llm needs an NVIDIA GPU; --engine auto serves most models on the CPU")
    return options.gpu


def _weights(
    folder: ModelFolder, planned: ComputePlan, cache_dir: str | None
) -> tuple[Checkpoint, Path, tuple[str, ...]]:
    """How the weights to load are stored, where they are, and a note about them."""
    if not planned.makes_copy:
        note = planned.stored.note
        return planned.stored, folder.weights_folder, (note,) if note else ()
    copy = _copy(folder.weights_folder, cache_dir)
    # The task stays that of the model's own folder: the copy has another name, and no modules beside the Transformer.
    copied = dataclasses.replace(folder, path=copy, tokenizer_folder="")
    return checkpoint.classify(copied), copied.path, (f"--quantization fp8: a block-FP8 copy in {copy}",)


def _copy(weights: Path, cache_dir: str | None) -> Path:
    from engine.tensorrt_llm.quantize.cached import block_fp8  # imports torch

    try:
        return block_fp8(weights, cache_dir=cache_dir)
    except ModelError:
        raise
    except Exception as error:  # of a library, which would end the process with a traceback
        raise ModelError(f"the FP8 copy of the model can't be made: {one_line(error)}") from error

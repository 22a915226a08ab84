"""Checks that the library reads a model's weights correctly, and that the GPUs can compute with them."""

from dataclasses import dataclass

from engine.machine.cuda_driver import Gpu
from engine.machine.devices import has_bfloat16, has_fp8
from engine.model import quantization
from engine.model.json_files import Json, read_object
from engine.model.known_code.qwen2 import REWARD
from engine.model.model_folder import ModelFolder
from engine.model.tasks import AnswerScore, SequenceScores
from engine.tensorrt_llm.planning import backbone
from engine.tensorrt_llm.planning.families import FAMILIES, unreadable
from engine.tensorrt_llm.planning.quantization import BLOCKS, FP8, NVFP4, ROWS, algorithm_of
from engine.tensorrt_llm.planning.tensors import Tensors, check, check_plain, layers_in, tensors_in
from engine.types import ModelError

PLAIN = ""
_EMBEDDING, _VOCABULARY, _SCORE = "embed_tokens.weight", "lm_head.weight", "score.weight"
_REWARD = tuple(f"score.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias"))  # of upstream's own class
_NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
# The library has kernels for these; others are not known to be correct.
_OF_BLOCKS = frozenset(((9, 0), (10, 0), (10, 3)))
_OF_ROWS = frozenset(((9, 0),))
_NVFP4_FROM = (10, 0)
_DTYPE_OF_BLOCKS = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The weights of a folder that the engine reads."""

    algorithm: str  # the library's name for it: "" = plain, or one of engine.tensorrt_llm.planning.quantization
    note: str = ""  # for the log and /info; "" if the weights are plain


def classify(folder: ModelFolder) -> Checkpoint:
    """Raises ModelError if the library can't read the weights, or would read them wrongly."""
    algorithm = algorithm_of(folder.path)
    family = FAMILIES.get(folder.architecture)  # None = for a class of the library's own
    if family is None or family.is_encoder:
        if algorithm is not None:
            raise unreadable(f"has no quantized layers for {folder.architecture}")
        if family is not None:
            backbone.check_bert_tensors(folder)
        return Checkpoint(algorithm=PLAIN)
    tensors = tensors_in(folder.path)
    check(tensors, algorithm)
    check_plain(tensors, _plain_names(folder, tensors, read_object(folder.path / "config.json")))
    if algorithm is None:
        return Checkpoint(algorithm=PLAIN)
    stored = quantization.describe(folder.path)
    return Checkpoint(algorithm=algorithm.name, note=stored.note if stored is not None else "")


def check_gpu(checkpoint: Checkpoint, gpu: Gpu) -> None:
    """Raises ModelError if a GPU can't compute with such weights."""
    if not has_bfloat16(gpu.capability):
        raise ModelError(
            f"{gpu} has no bfloat16, which the tensorrt-llm engine computes in and which begins at 8.0; "
            "--engine transformers with --dtype float32 or float16, in the cuda image, runs there"
        )
    needs = _needs(checkpoint.algorithm, gpu.capability)
    if needs:
        instead = "take the model's plain weights"
        if checkpoint.algorithm != NVFP4:
            instead += ", or --engine fused, in the cuda image, which reads them on this GPU"
        raise ModelError(
            f"{gpu} does not compute {checkpoint.algorithm} in the tensorrt-llm engine: {needs}; {instead}"
        )


def check_dtype(checkpoint: Checkpoint, dtype: str) -> None:
    """Raises ModelError if the library's kernels for such weights do not take rows in the dtype."""
    if checkpoint.algorithm == BLOCKS and dtype != _DTYPE_OF_BLOCKS:
        raise ModelError(
            f"--dtype {dtype} is not for {BLOCKS} in the tensorrt-llm engine, which computes them in {_DTYPE_OF_BLOCKS}"
        )


def _needs(algorithm: str, capability: tuple[int, int]) -> str:
    """What such weights need and this compute capability lacks; "" if nothing."""
    if algorithm == FP8 and not has_fp8(capability):
        return "FP8 begins at 8.9 (Ada, Hopper)"
    if algorithm == BLOCKS and capability not in _OF_BLOCKS:
        return "it is known for 9.0, 10.0 and 10.3 (H100, H200, B200, B300) alone"
    if algorithm == ROWS and capability not in _OF_ROWS:
        return "it is known for 9.0 (H100, H200) alone"
    if algorithm == NVFP4 and capability < _NVFP4_FROM:
        return "NVFP4 begins at 10.0 (Blackwell)"
    return ""


def _plain_names(folder: ModelFolder, tensors: Tensors, config: Json) -> list[str]:
    """The names of all tensors that the engine reads, except linear layers' weights."""
    names = [_EMBEDDING, "norm.weight", *(f"{layer}.{norm}" for layer in layers_in(tensors) for norm in _NORMS)]
    names += [name for name in tensors if name.startswith("layers.") and name.endswith((".bias", "_norm.weight"))]
    for head in folder.heads:
        if isinstance(head, SequenceScores):
            names += _REWARD if folder.architectures[:1] == (REWARD,) else [_SCORE]
        if isinstance(head, AnswerScore) and not config.get("tie_word_embeddings"):
            names.append(_VOCABULARY)
    return names

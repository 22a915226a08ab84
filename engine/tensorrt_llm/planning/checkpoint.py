"""Checks that the library reads a model's weights correctly, and that the GPUs can compute with them.

A checkpoint's tensors must have the names, dtypes and shapes that the library needs. It looks scales up by name, and
where one is missing it computes with whatever lies in memory, so each one is checked here. It joins the weights and the
scales of layers with the same input. Reads the headers of the files alone.

Shapes: N rows and K columns of a weight, [N, K].
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.machine.cuda_driver import Gpu
from engine.machine.devices import has_bfloat16, has_fp8
from engine.model import quantization
from engine.model.json_files import Json, read_object
from engine.model.known_code.qwen2 import REWARD
from engine.model.model_folder import ModelFolder
from engine.model.tasks import AnswerScore, SequenceScores
from engine.model.weights import PLAIN as PLAIN_DTYPES
from engine.model.weights import StoredTensor, checkpoint_files, stored_tensors
from engine.tensorrt_llm.planning.backbone import ROBERTA_PREFIX, backbone_names, weight_and_bias
from engine.tensorrt_llm.planning.families import FAMILIES, refusal, unreadable
from engine.tensorrt_llm.planning.quantization import BLOCKS, FP8, NVFP4, ROWS, Algorithm, ExcludedModules, algorithm_of
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
_CLASSIFIER = ("classifier.dense", "classifier.out_proj")  # of a RoBERTa
# The library's joined linear layers -> their parts in the files, within a layer
JOINED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": ("self_attn.o_proj",),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj": ("mlp.down_proj",),
}
Tensors = Mapping[str, StoredTensor]  # without the prefix "model." of backbones
_PREFIX = "model."
_LAYER = re.compile(r"(layers\.\d+)\.")
_PASSED_OVER = "consolidated"  # in a file's name
_E4M3, _BYTES = "F8_E4M3", "U8"
_BLOCK = 128  # rows and columns of a block of FP8
_GROUP = 16  # numbers of NVFP4 that share a scale
# N and K are multiples of it: blocks, since joined grids of scales must fit each other; what the kernels load at once
_MULTIPLES = {FP8: 16, BLOCKS: _BLOCK, ROWS: 16, NVFP4: _GROUP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The weights of a folder that the engine reads."""

    algorithm: str  # the library's name for it: "" = plain, or one of engine.tensorrt_llm.planning.quantization
    note: str = ""  # for the log and /info; "" if the weights are plain


def classify(folder: ModelFolder) -> Checkpoint:
    """What kind of weights these are. Raises ModelError if the library can't read them, or would read them wrongly."""
    algorithm = algorithm_of(folder.path)
    family = FAMILIES.get(folder.architecture)  # None = for a class of the library's own
    if family is None or family.is_encoder:
        if algorithm is not None:
            raise unreadable(f"has no quantized layers for {folder.architecture}")
        if family is not None:
            _check_bert(folder)
        return Checkpoint(algorithm=PLAIN)
    tensors = tensors_in(folder.path)
    _check_layers(tensors, algorithm)
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
    """Abilities that such weights need and this compute capability lacks; "" if nothing."""
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


def _check_bert(folder: ModelFolder) -> None:
    """Raises ModelError if a tensor of a RoBERTa is missing or not stored in plain numbers."""
    tensors = tensors_in(folder.path)
    prefix = ROBERTA_PREFIX if any(name.startswith(ROBERTA_PREFIX) for name in tensors) else ""
    check_plain(tensors, backbone_names(read_object(folder.path / "config.json"), prefix))
    if folder.heads:
        check_plain(tensors, weight_and_bias(*_CLASSIFIER))


def tensors_in(folder: Path) -> Tensors:
    """The library reads every safetensors file of a folder, whatever the index names, and a later file's tensors
    replace an earlier one's; so files with the same tensor are refused.

    Raises ModelError for that, and where a file is missing or damaged.
    """
    found: dict[str, StoredTensor] = {}
    others = {file for file in folder.glob("*.safetensors") if _PASSED_OVER not in file.name}
    for tensor in itertools.chain.from_iterable(map(stored_tensors, sorted(others | set(checkpoint_files(folder))))):
        name = tensor.name.removeprefix(_PREFIX)
        if name in found:
            raise refusal(f"reads every safetensors file of a folder, and two of them have the tensor {name!r}")
        found[name] = tensor
    return found


def layers_in(tensors: Tensors) -> list[str]:
    """The names of layers, "layers.0" and so on. Raises ModelError if there are none."""
    layers = {match[1] for name in tensors if (match := _LAYER.match(name))}
    if not layers:
        raise refusal("looks for the tensors of layers.0, which the weights lack")
    return sorted(layers)


_Check = Callable[[Tensors, str], None]  # of one linear layer


def _check_layers(tensors: Tensors, algorithm: Algorithm | None) -> None:
    """Raises ModelError if a linear layer does not match the algorithm or the files' description."""
    excluded = ExcludedModules(algorithm.excluded if algorithm else ())
    for layer in layers_in(tensors):
        for joined, parts in JOINED.items():
            modules = [f"{layer}.{part}" for part in parts]
            _check_joined(tensors, modules, algorithm, excluded, f"{layer}.{joined}")


def check_plain(tensors: Tensors, names: Iterable[str]) -> None:
    """Raises ModelError if one of these is missing or not stored in plain numbers."""
    for name in names:
        if _required_tensor(tensors, name).dtype not in PLAIN_DTYPES:
            raise unreadable(f"needs plain numbers in the tensor {name!r}, and it is stored as {tensors[name].dtype}")


def _check_joined(
    tensors: Tensors, modules: list[str], algorithm: Algorithm | None, excluded: ExcludedModules, joined: str
) -> None:
    weights = {f"{module}.weight" for module in modules}
    plain = {name for name in weights if _required_tensor(tensors, name).dtype in PLAIN_DTYPES}
    names = [f"model.{each}" for each in (*modules, joined)]
    if plain and plain != weights:
        raise unreadable(f"joins {', '.join(sorted(weights))}, and only some of them are quantized")
    if plain:
        if algorithm is not None and not excluded.certainly(names):
            raise unreadable(f"takes the tensor {min(plain)!r} for a quantized one, and it is stored plain")
        return
    if algorithm is None:
        raise unreadable(f"takes the tensor {min(weights)!r} for a plain one, and it is stored quantized")
    if excluded.maybe(names):
        raise unreadable(
            f"may take the tensor {min(weights)!r} for a plain one, as the model's files say, and it is not"
        )
    for module in modules:
        _CHECKS[algorithm.name](tensors, module)
    if len({f"{module}.input_scale" in tensors for module in modules}) > 1:
        raise unreadable(f"joins {', '.join(sorted(weights))}, and only some of them have an input_scale")
    if len({f"{module}.weight_scale_inv" in tensors for module in modules}) > 1:
        raise unreadable(f"joins {', '.join(sorted(weights))}, and the names of their scales differ")


def _check_fp8(tensors: Tensors, module: str) -> None:
    _weight(tensors, module, FP8)
    _scale(tensors, f"{module}.weight_scale", ((), (1,)))
    if f"{module}.input_scale" in tensors:
        _scale(tensors, f"{module}.input_scale", ((), (1,)))


def _check_blocks(tensors: Tensors, module: str) -> None:
    rows, columns = (size // _BLOCK for size in _weight(tensors, module, BLOCKS))
    inverted = f"{module}.weight_scale_inv"
    name = inverted if inverted in tensors else f"{module}.weight_scale"
    _scale(tensors, name, ((rows, columns), (rows, 1, columns, 1)))


def _check_rows(tensors: Tensors, module: str) -> None:
    rows, _ = _weight(tensors, module, ROWS)
    if f"{module}.weight_scale_inv" in tensors:
        raise unreadable(f"does not expect the tensor {f'{module}.weight_scale_inv'!r} beside scales per channel")
    _scale(tensors, f"{module}.weight_scale", ((rows,), (rows, 1)))


def _check_nvfp4(tensors: Tensors, module: str) -> None:
    name = f"{module}.weight"
    weight = _typed(tensors, name, (_BYTES,))
    if len(weight.shape) != 2:
        raise _wrong_shape(name, weight, "two in a byte, [N, K / 2]")
    rows, columns = weight.shape[0], 2 * weight.shape[1]
    _check_multiples(name, (rows, columns), NVFP4)
    scale = f"{module}.weight_scale"
    if _typed(tensors, scale, (_E4M3,)).shape != (rows, columns // _GROUP):
        raise _wrong_shape(scale, tensors[scale], f"{[rows, columns // _GROUP]}")
    _scale(tensors, f"{module}.weight_scale_2", ((), (1,)))
    if f"{module}.input_scale" not in tensors:
        raise unreadable(
            f"needs static scales of inputs for NVFP4, and the tensor {f'{module}.input_scale'!r} is missing"
        )
    _scale(tensors, f"{module}.input_scale", ((), (1,)))


_CHECKS: dict[str, _Check] = {FP8: _check_fp8, BLOCKS: _check_blocks, ROWS: _check_rows, NVFP4: _check_nvfp4}


def _weight(tensors: Tensors, module: str, algorithm: str) -> tuple[int, int]:
    """The shape of a linear layer: N and K."""
    name = f"{module}.weight"
    weight = _typed(tensors, name, (_E4M3,))
    if len(weight.shape) != 2:
        raise _wrong_shape(name, weight, "[N, K]")
    _check_multiples(name, weight.shape, algorithm)
    return weight.shape[0], weight.shape[1]


def _scale(tensors: Tensors, name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    if _typed(tensors, name, PLAIN_DTYPES).shape not in shapes:
        raise _wrong_shape(name, tensors[name], " or ".join(str(list(shape)) for shape in shapes))


def _typed(tensors: Tensors, name: str, dtypes: Iterable[str]) -> StoredTensor:
    tensor = _required_tensor(tensors, name)
    if tensor.dtype not in dtypes:
        raise unreadable(f"expects the tensor {name!r} as {' or '.join(sorted(dtypes))}, and it is {tensor.dtype}")
    return tensor


def _required_tensor(tensors: Tensors, name: str) -> StoredTensor:
    if name not in tensors:
        raise unreadable(f"looks for the tensor {name!r}, which the weights lack")
    return tensors[name]


def _wrong_shape(name: str, tensor: StoredTensor, expected: str) -> Exception:
    return unreadable(f"expects the tensor {name!r} to be {expected}, and it is {list(tensor.shape)}")


def _check_multiples(name: str, shape: tuple[int, ...], algorithm: str) -> None:
    multiple = _MULTIPLES[algorithm]
    if any(size % multiple for size in shape):
        raise unreadable(f"needs sizes that are multiples of {multiple} for {algorithm}, and {name!r} is {list(shape)}")

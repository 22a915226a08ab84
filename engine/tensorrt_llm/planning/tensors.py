"""Checks that a checkpoint's tensors have the names, dtypes and shapes that the library needs.

The library looks scales up by name, and where one is missing it computes with whatever lies in memory, so each one is
checked here. It joins the weights and the scales of layers with the same input. Reads the headers of the files alone.

Shapes: N rows and K columns of a weight, [N, K].
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from engine.model.weights import header_of, weight_files
from engine.tensorrt_llm.planning.families import refusal, unreadable
from engine.tensorrt_llm.planning.quantization import BLOCKS, FP8, NVFP4, ROWS, Algorithm, ExcludedModules
from engine.types import ModelError

# The library's joined linear layers -> their parts in the files, within a layer
JOINED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": ("self_attn.o_proj",),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj": ("mlp.down_proj",),
}
_PREFIX = "model."
_LAYER = re.compile(r"(layers\.\d+)\.")
_PASSED_OVER = "consolidated"  # in a file's name


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in a header."""

    dtype: str  # safetensors' name
    shape: tuple[int, ...]


Tensors = dict[str, Tensor]


def tensors_in(folder: Path) -> Tensors:
    """The tensors by name, without the prefix "model." of backbones.

    The library reads every safetensors file of a folder, whatever the index names, and a later file's tensors replace
    an earlier one's; so files with the same tensor are refused. Raises ModelError for that, and where a file is missing
    or damaged.
    """
    found: Tensors = {}
    others = {file for file in folder.glob("*.safetensors") if _PASSED_OVER not in file.name}
    for file in sorted(others | set(weight_files(folder))):
        for name, tensor in _tensors_of(file).items():
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


def _tensors_of(file: Path) -> Tensors:
    try:
        header = header_of(file).tensors
        return {
            name.removeprefix(_PREFIX): Tensor(str(tensor["dtype"]), tuple(map(int, tensor["shape"])))
            for name, tensor in header.items()
        }
    except (OSError, ValueError, LookupError, TypeError, OverflowError) as error:
        raise ModelError(f"{file} is not a safetensors file") from error


_E4M3, _BYTES = "F8_E4M3", "U8"
_PLAIN = frozenset(("F64", "F32", "F16", "BF16"))
_BLOCK = 128  # rows and columns of a block of FP8
_GROUP = 16  # numbers of NVFP4 that share a scale
# What N and K are multiples of: blocks, since joined grids of scales must fit each other; what the kernels load at once
_MULTIPLES = {FP8: 16, BLOCKS: _BLOCK, ROWS: 16, NVFP4: _GROUP}

Check = Callable[[Tensors, str], None]  # of one linear layer


def check(tensors: Tensors, algorithm: Algorithm | None) -> None:
    """Raises ModelError if a linear layer does not match the algorithm or the files' description."""
    excluded = ExcludedModules(algorithm.excluded if algorithm else ())
    for layer in layers_in(tensors):
        for joined, parts in JOINED.items():
            modules = [f"{layer}.{part}" for part in parts]
            _check_joined(tensors, modules, algorithm, excluded, f"{layer}.{joined}")


def check_plain(tensors: Tensors, names: Iterable[str]) -> None:
    """Raises ModelError if one of these is missing or not stored in plain numbers."""
    for name in names:
        if _required_tensor(tensors, name).dtype not in _PLAIN:
            raise unreadable(f"needs plain numbers in the tensor {name!r}, and it is stored as {tensors[name].dtype}")


def _check_joined(
    tensors: Tensors, modules: list[str], algorithm: Algorithm | None, excluded: ExcludedModules, joined: str
) -> None:
    weights = {f"{module}.weight" for module in modules}
    plain = {name for name in weights if _required_tensor(tensors, name).dtype in _PLAIN}
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


_CHECKS: dict[str, Check] = {FP8: _check_fp8, BLOCKS: _check_blocks, ROWS: _check_rows, NVFP4: _check_nvfp4}


def _weight(tensors: Tensors, module: str, algorithm: str) -> tuple[int, int]:
    """The shape of a linear layer: N and K."""
    name = f"{module}.weight"
    weight = _typed(tensors, name, (_E4M3,))
    if len(weight.shape) != 2:
        raise _wrong_shape(name, weight, "[N, K]")
    _check_multiples(name, weight.shape, algorithm)
    return weight.shape[0], weight.shape[1]


def _scale(tensors: Tensors, name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    if _typed(tensors, name, _PLAIN).shape not in shapes:
        raise _wrong_shape(name, tensors[name], " or ".join(str(list(shape)) for shape in shapes))


def _typed(tensors: Tensors, name: str, dtypes: Iterable[str]) -> Tensor:
    tensor = _required_tensor(tensors, name)
    if tensor.dtype not in dtypes:
        raise unreadable(f"expects the tensor {name!r} as {' or '.join(sorted(dtypes))}, and it is {tensor.dtype}")
    return tensor


def _required_tensor(tensors: Tensors, name: str) -> Tensor:
    if name not in tensors:
        raise unreadable(f"looks for the tensor {name!r}, which the weights lack")
    return tensors[name]


def _wrong_shape(name: str, tensor: Tensor, expected: str) -> Exception:
    return unreadable(f"expects the tensor {name!r} to be {expected}, and it is {list(tensor.shape)}")


def _check_multiples(name: str, shape: tuple[int, ...], algorithm: str) -> None:
    multiple = _MULTIPLES[algorithm]
    if any(size % multiple for size in shape):
        raise unreadable(f"needs sizes that are multiples of {multiple} for {algorithm}, and {name!r} is {list(shape)}")

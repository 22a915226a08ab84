"""What tensors a folder has for the library, by name, without the "model." that whole models put before backbones'.

The library reads every safetensors file of a folder, whatever the index names, and a later one's tensors replace an
earlier one's; so files with the same tensors are refused.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from engine.model.weights import header_of, weight_files
from engine.tensorrt_llm.refusal import refusal
from engine.types import ModelError

# What the library makes one linear layer of, by its name there: what files have, within a layer
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
    """As a header has it."""

    dtype: str  # in safetensors' spelling
    shape: tuple[int, ...]


Tensors = dict[str, Tensor]


def tensors_in(folder: Path) -> Tensors:
    """Raises ModelError where a file is missing or damaged, or two have the same tensor."""
    found: Tensors = {}
    others = {file for file in folder.glob("*.safetensors") if _PASSED_OVER not in file.name}
    for file in sorted(others | set(weight_files(folder))):
        for name, tensor in _tensors_of(file).items():
            if name in found:
                raise refusal(f"reads every safetensors file of a folder, and two of them have the tensor {name!r}")
            found[name] = tensor
    return found


def layers_in(tensors: Tensors) -> list[str]:
    """Their names, "layers.0" and so on. Raises ModelError where there is none."""
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

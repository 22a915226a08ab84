"""Decides how the library would read a quantized checkpoint, from the same JSON files and by its rules.

Those are its ModelConfig.load_hf_quant_config, read_modelopt_quant_config and
update_quant_config_from_compressed_tensors. The library silently takes some checkpoints for plain weights, such as FP8
without blocks in config.json. These are refused here, and so is what its versions read differently. Knows no tensors:
engine.tensorrt_llm.planning.tensors compares what the files have with this.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from engine.model import quantization
from engine.model.json_files import Json, object_in, read_optional
from engine.tensorrt_llm.planning.families import unreadable

# The library's own names
FP8 = "FP8"  # one scale for each weight
BLOCKS = "FP8_BLOCK_SCALES"  # one scale for each 128 x 128 block
ROWS = "FP8_PER_CHANNEL_PER_TOKEN"
NVFP4 = "NVFP4"

_MODELOPT = {"FP8": FP8, "fp8_pb_wo": BLOCKS, "FP8_PER_CHANNEL_PER_TOKEN": ROWS, "NVFP4": NVFP4}
_GROUP_SIZES = {BLOCKS: 128, NVFP4: 16}
_BLOCK = 128
_MAX_NAME = 60  # characters of a name in a message


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The quantization of linear layers."""

    name: str
    excluded: tuple[str, ...]  # patterns of modules' names, see engine.tensorrt_llm.planning.quantization


def algorithm_of(folder: Path) -> Algorithm | None:
    """None if the library takes the weights as plain ones, correctly. Raises ModelError if they are quantized and the
    library would overlook it, refuse it or be wrong."""
    stored = quantization.describe(folder)
    config = read_optional(folder / "config.json")
    inline, beside = object_in(config, "quantization_config"), quantization.beside(folder)
    _check_cache(inline, beside)
    if stored is None:
        quantization.check_plain(folder)
        return None
    if beside.get("quant_algo"):
        return _modelopt(beside)
    match str(inline.get("quant_method", "")).lower():
        case "fp8":
            return _fp8(inline)
        case "compressed-tensors":
            return _compressed_tensors(inline)
        case method if method.startswith("modelopt") or "quant_algo" in inline:
            raise unreadable("reads what Model Optimizer writes by hf_quant_config.json, which the folder lacks")
        case "":
            raise unreadable(f"would take them for plain weights: {stored.note}, and not by quantization_config")
        case method:
            raise unreadable(f"would take them for plain weights: {stored.note}, by {method[:_MAX_NAME]}")


def _check_cache(inline: Json, beside: Json) -> None:
    """Raises ModelError for a quantized key-value cache: attention's output would be FP8, with a missing scale."""
    for where in (inline, object_in(inline, "quantization"), beside):
        for name in ("kv_cache_quant_algo", "kv_cache_scheme"):
            if where.get(name) is not None:
                raise unreadable(
                    f"has no cache of keys and values, and {name} in the model's files asks for a quantized one (a "
                    "copy without that entry is read)"
                )


def _modelopt(config: Json) -> Algorithm:
    written = str(config["quant_algo"])
    name = _MODELOPT.get(written)
    if name is None:
        raise unreadable(f"does not read quant_algo {written[:_MAX_NAME]!r} of hf_quant_config.json")
    if config.get("group_size") not in (None, _GROUP_SIZES.get(name), 0):
        raise unreadable(
            f"reads {name} in groups of {_GROUP_SIZES.get(name, 'no size')}, unlike hf_quant_config.json's"
        )
    return Algorithm(name, _names(config, "exclude_modules" if "exclude_modules" in config else "ignore"))


def _fp8(config: Json) -> Algorithm:
    if config.get("weight_block_size") != [_BLOCK, _BLOCK]:
        raise unreadable(
            f"reads fp8 of config.json in blocks of {_BLOCK} x {_BLOCK} alone, and weight_block_size is another"
        )
    return Algorithm(BLOCKS, _names(config, "modules_to_not_convert"))


def _compressed_tensors(config: Json) -> Algorithm:
    groups = list(object_in(config, "config_groups").values())
    if len(groups) != 1:
        raise unreadable(f"reads one of config_groups of compressed-tensors, and config.json has {len(groups)}")
    weights, inputs = object_in(groups[0], "weights"), object_in(groups[0], "input_activations")
    excluded = _names(config, "ignore")
    match weights.get("strategy"), inputs.get("strategy"):
        case "channel", "token":
            return Algorithm(ROWS, excluded)
        case "block", "group" if (inputs.get("group_size"), weights.get("block_structure")) == (_BLOCK, [_BLOCK] * 2):
            return Algorithm(BLOCKS, excluded)
        case "tensor_group", _:
            raise unreadable(
                "reads NVFP4 as Model Optimizer stores it; compressed-tensors has other names for its tensors"
            )
        case of_weights, of_inputs:
            raise unreadable(
                "reads FP8 of compressed-tensors with scales per channel and token, or in blocks of 128, and "
                f"config.json's are per {str(of_weights)[:_MAX_NAME]} and {str(of_inputs)[:_MAX_NAME]}"
            )


def _names(config: Json, key: str) -> tuple[str, ...]:
    names = config.get(key) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise unreadable(f"needs a list of names as {key!r} in the model's files")
    return tuple(names)


_REGEX = "re:"
_BELOW = ".*"
# The pieces of regular expressions that are turned into shell patterns, since one from a stranger's file may run for
# hours: *, ?, an escaped character, and one that stands for itself.
_PIECE = r"(\.\*)|(\.)|\\([.\-_])|([\w\-])"


class ExcludedModules:
    """The linear layers that the library builds as plain ones, from the names in the files.

    Older versions compare a module's name with shell patterns. Newer ones also look at the modules around it, and take
    a pattern that begins with "re:" as a regular expression. So some modules are certainly left plain and some may be;
    a checkpoint is right for every version only where both come to the same.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        """Raises ModelError for a regular expression with more than names and wildcards."""
        self._shell = [pattern for pattern in patterns if not pattern.startswith(_REGEX)]
        self._regex = [_as_shell(pattern) for pattern in patterns if pattern.startswith(_REGEX)]

    def certainly(self, modules: Iterable[str]) -> bool:
        """Whether any of these layers is plain in every version."""
        return any(_matches(module, self._shell) for module in modules)

    def maybe(self, modules: Iterable[str]) -> bool:
        """Whether any of these layers is plain in some version."""
        patterns = [*self._shell, *self._regex]
        patterns += [pattern.removesuffix(_BELOW) for pattern in patterns if pattern.endswith(_BELOW)]
        around = (itertools.accumulate(module.split("."), "{}.{}".format) for module in modules)
        return any(_matches(name, patterns) for name in itertools.chain.from_iterable(around))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _as_shell(pattern: str) -> str:
    expression = pattern.removeprefix(_REGEX).removeprefix("^").removesuffix("$")
    if re.sub(_PIECE, "", expression):
        raise unreadable("can't tell which modules a regular expression in the model's files leaves unquantized")
    return re.sub(_PIECE, lambda piece: "*" if piece[1] else "?" if piece[2] else piece[3] or piece[4], expression)

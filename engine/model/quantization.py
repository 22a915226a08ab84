"""Finds out from JSON files whether and how a model's weights are stored quantized. Reads no tensors.

The places are "quantization_config" in config.json ("compression_config" in old files of compressed-tensors), and
hf_quant_config.json beside it, which NVIDIA's Model Optimizer writes:

    fp8: transformers' FineGrainedFP8Config and vLLM's Fp8Config. `x.weight` with `x.weight_scale_inv`, [ceil(N / 128),
        ceil(K / 128)] or one number, or with `x.weight_scale`. Each is what values are multiplied by, "inv" or not.
    fbgemm_fp8: `x.weight_scale` [N, 1].
    compressed-tensors: `x.weight_scale`, [1], [N, 1] or one of each block, said by `strategy` in each config group.
    modelopt: `x.weight_scale`, one number, [N] or [N / 128, 1, K / 128, 1], said by `quant_algo`.

NVFP4, numbers of 4 bits in groups of 16, is only for the tensorrt-llm engine: modelopt's, and "nvfp4-pack-quantized" of
compressed-tensors.

Some files also have scales of activations. They are not needed, because activations are scaled when computed.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model.card import plain_form
from engine.model.json_files import Json, object_in, read_optional
from engine.model.weights import PLAIN, checkpoint_files, stored_tensors
from engine.types import ModelError

TENSOR, CHANNEL, BLOCK = "tensor", "channel", "block"

_MODELOPT_BLOCK = (128, 128)
_MODELOPT = {
    "FP8": (frozenset({TENSOR}), None),
    "FP8_PER_CHANNEL_PER_TOKEN": (frozenset({CHANNEL}), None),
    "FP8_PB_WO": (frozenset({BLOCK}), _MODELOPT_BLOCK),
}
_NVFP4 = "NVFP4"  # of modelopt
_NVFP4_FORMAT = "nvfp4-pack-quantized"  # of compressed-tensors
_PLAIN_FORMATS = frozenset({"dense", "float-quantized", "naive-quantized", "mixed-precision"})
_MAX_NAME = 60  # characters of a method's name in a message
_INTEGERS = frozenset(("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"))  # masks, positions, …
# The ends of weights' names: the last two hold several numbers each, as GPTQ, AWQ and compressed-tensors pack them.
_WEIGHT_ENDINGS = (".weight", ".qweight", ".weight_packed")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFp8:
    """Weights of e4m3 numbers and scales.

    A tensor without a scale is stored plain, so the files' list of ignored modules is not needed.
    """

    method: str  # "fp8", "fbgemm_fp8", "compressed-tensors" or "modelopt"
    granularities: frozenset[str]  # the parts with one scale each: TENSOR, CHANNEL (row of a weight) or BLOCK
    block: tuple[int, int] | None  # rows and columns of a block
    scale_names: tuple[str, ...] = ("weight_scale",)  # replaces "weight" in the tensor's name

    @property
    def text(self) -> str:
        """The form of storage, in a few words."""
        return f"FP8 ({self.method}, scales per {' or '.join(sorted(self.granularities))})"

    @property
    def note(self) -> str:
        """A note for the log and /info."""
        return f"the weights are stored as {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNvfp4:
    """Weights of e2m1 numbers, two in a byte, with an e4m3 scale for each 16 and one for all of them."""

    method: str  # "modelopt" or "compressed-tensors"

    @property
    def text(self) -> str:
        """The form of storage, in a few words."""
        return f"NVFP4 ({self.method})"

    @property
    def note(self) -> str:
        """A note for the log and /info."""
        return f"the weights are stored as {self.text}"


Stored = StoredFp8 | StoredNvfp4


def check(folder: Path, *, reads_fp8: bool) -> StoredFp8 | None:
    """Call `read`. Raises ModelError if the engine can't read the weights. reads_fp8: whether it reads FP8.

    Libraries take quantized numbers for plain weights if config.json does not describe them. So this also checks the
    headers of the files.
    """
    stored = read(folder)
    if stored is not None and not reads_fp8:
        raise ModelError(
            f"{stored.note}; only the fused engine reads them: on a GPU, or with --engine fused --devices cpu for "
            f"checks. In its own image, the tensorrt-llm engine reads most of them{plain_form(folder)}"
        )
    if stored is None:
        check_plain(folder)
    return stored


def check_plain(folder: Path) -> None:
    """Raises ModelError if headers have quantized weights that no JSON file describes: tensors of an unusual dtype, or
    of an integer dtype for a weight. Also if a file is wrong."""
    for tensor in itertools.chain.from_iterable(map(stored_tensors, checkpoint_files(folder))):
        is_integer = tensor.dtype in _INTEGERS and not tensor.name.endswith(_WEIGHT_ENDINGS)
        if tensor.dtype not in PLAIN and not is_integer:
            raise ModelError(
                f"the tensor {tensor} is stored as {tensor.dtype}, but the model's files do not describe the scales, "
                f"so no engine can read them; take the model's plain weights{plain_form(folder)}"
            )


def read(folder: Path) -> StoredFp8 | None:
    """None if the weights are stored plain. Raises ModelError if they are quantized in a way that no engine or only
    tensorrt-llm reads."""
    stored = describe(folder)
    if isinstance(stored, StoredNvfp4):
        raise ModelError(
            f"the weights are stored quantized by {stored.method} as NVFP4, which only the tensorrt-llm engine reads: "
            f"Model Optimizer's, on Blackwell GPUs; take the model's plain weights, or FP8{plain_form(folder)}"
        )
    return stored


def describe(folder: Path) -> Stored | None:
    """None if the weights are stored plain. Raises ModelError if they are quantized in a way that no engine reads."""
    config = read_optional(folder / "config.json")
    stored = _config_of(config) or _config_of(object_in(config, "text_config")) or beside(folder)
    try:
        return _classified(stored) if stored else None
    except _UnreadError as error:
        raise ModelError(f"{error}{plain_form(folder)}") from None


def beside(folder: Path) -> Json:
    """The content of hf_quant_config.json, in its older and newer form; empty if it is missing."""
    config = read_optional(folder / "hf_quant_config.json")
    stored = object_in(config, "quantization") or (config if "quant_algo" in config else {})
    return {"quant_method": "modelopt", **stored} if stored else {}


def _config_of(config: Json) -> Json:
    stored = object_in(config, "quantization_config") or object_in(config, "compression_config")
    of_mlx = object_in(config, "quantization")
    return stored if "quant_method" in stored or "bits" not in of_mlx else {"quant_method": "MLX"}


def _classified(config: Json) -> Stored | None:
    match str(config.get("quant_method", "modelopt" if "quant_algo" in config else "unnamed")).lower():
        case "fp8":
            return _fp8(config)
        case "fbgemm_fp8":
            return StoredFp8(method="fbgemm_fp8", granularities=frozenset({CHANNEL}), block=None)
        case "compressed-tensors":
            return _compressed_tensors(config)
        case method if method.startswith("modelopt"):
            return _modelopt(config)
        case method:
            raise _refusal(method)


def _fp8(config: Json) -> StoredFp8:
    if config.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise _refusal(f"fp8 {config['fmt']}")
    block = _block_in(config, "weight_block_size")
    return StoredFp8(
        method="fp8",
        granularities=frozenset({TENSOR, CHANNEL}) if block is None else frozenset({BLOCK}),
        block=block,
        scale_names=("weight_scale_inv", "weight_scale"),
    )


def _compressed_tensors(config: Json) -> Stored | None:
    if config.get("transform_config"):
        raise _refusal("compressed-tensors with transforms")
    if object_in(config, "sparsity_config").get("format", "dense") != "dense":
        raise _refusal("compressed-tensors with sparse weights")
    groups = [group for group in object_in(config, "config_groups").values() if _weights_of(group)]
    if not groups:
        return None
    if {_format_of(group, config) for group in groups} == {_NVFP4_FORMAT}:
        return StoredNvfp4(method="compressed-tensors")
    kinds = {_group_kind(group, config) for group in groups}
    blocks = {block for _, block in kinds if block is not None}
    if len(blocks) > 1:
        raise _refusal("compressed-tensors with blocks of several sizes")
    return StoredFp8(
        method="compressed-tensors",
        granularities=frozenset(granularity for granularity, _ in kinds),
        block=min(blocks, default=None),
    )


def _weights_of(group: Any) -> Json:
    if not isinstance(group, dict):
        raise ModelError("'config_groups' in the model's files holds something that is not a JSON object")
    return object_in(group, "weights")


def _group_kind(group: Json, config: Json) -> tuple[str, tuple[int, int] | None]:
    """The parts with one scale each in this group, and the size of a block."""
    weights = _weights_of(group)
    stored_as = _format_of(group, config)
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else TENSOR)
    if stored_as not in _PLAIN_FORMATS:
        raise _refusal(f"compressed-tensors {stored_as}")
    if (weights.get("type"), weights.get("num_bits")) != ("float", 8) or weights.get("symmetric") is False:
        raise _refusal(f"compressed-tensors {weights.get('type')} of {weights.get('num_bits')} bits")
    if strategy not in (TENSOR, CHANNEL, BLOCK):
        raise _refusal(f"compressed-tensors with scales per {strategy}")
    block = _block_in(weights, "block_structure") if strategy == BLOCK else None
    if strategy == BLOCK and block is None:
        raise ModelError("'block_structure' in the model's files is missing")
    return strategy, block


def _format_of(group: Json, config: Json) -> str:
    return str(group.get("format") or config.get("format") or "dense")


def _modelopt(config: Json) -> Stored | None:
    config = object_in(config, "quantization") or config
    algorithm = str(config.get("quant_algo") or "").upper()
    if not algorithm:  # only the key-value cache is quantized, which embeddings do not use
        return None
    if algorithm == _NVFP4:
        return StoredNvfp4(method="modelopt")
    if algorithm not in _MODELOPT:
        raise _refusal(f"modelopt {algorithm}")
    granularities, block = _MODELOPT[algorithm]
    return StoredFp8(method="modelopt", granularities=granularities, block=block)


def _block_in(config: Json, key: str) -> tuple[int, int] | None:
    block = config.get(key)
    if block is None:
        return None
    if isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block):
        return block[0], block[1]
    raise ModelError(f"{key!r} in the model's files is not a pair of positive whole numbers")


class _UnreadError(ModelError):
    """No engine reads weights that are stored so."""


def _refusal(method: str) -> _UnreadError:
    return _UnreadError(
        f"the weights are stored quantized by {' '.join(method.split())[:_MAX_NAME]}, which can't be read; "
        "take the model's plain weights, or FP8 by fp8, fbgemm_fp8, compressed-tensors or modelopt"
    )

"""Plans a quantized folder: the tensors that become FP8, and where each will be. Reads no weight.

It goes by the model's JSON files and the headers of its weights. The folder may be hostile: engine.convert.plan,
which finds its files, checks that.

The weights of the linear layers in a transformer's numbered layers become FP8. Embeddings, norms, heads, poolers and
routers stay plain, as in other checkpoints of this format. Weights that do not divide into whole blocks stay plain too,
because transformers neither quantizes them nor reads them as FP8. config.json names those that stay plain.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

from engine.convert.plan import copied_files
from engine.model import quantization
from engine.model.json_files import Json, read_object
from engine.model.weights import checkpoint_files
from engine.store.tensor_file import ByteRange, Described, NewHeader, byte_ranges, new_header
from engine.types import ModelError

BLOCK = 128  # rows and columns
_FLOATS = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))
_OUTSIDE = frozenset(("lm_head", "score", "classifier", "pooler", "head", "v_head", "summary"))
# Layers that some classes have although the checkpoint has none.
_LAYERS_OUTSIDE = frozenset(("pooler.dense", "classifier.dense", "classifier.out_proj", "head.dense"))
_NOT_LINEAR = re.compile(r"embed|norm|router|^gate$|^shared_expert_gate$|relative_attention_bias")
# Engines join each of these groups into one matrix, so all of a group must be stored alike.
_JOINED = {
    name: group
    for group in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("query", "key", "value"), ("w1", "w3"))
    for name in group
}
CONFIG, _INDEX, _SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
# Not copied: TensorRT-LLM reads it before config.json, and it describes the plain weights.
_OF_PLAIN = "hf_quant_config.json"
# Their layers are stored transposed, so programs that read FP8 do not take them for linear layers.
_TRANSPOSED = frozenset(("gpt2", "openai-gpt"))


@dataclass(frozen=True, slots=True)
class Selection:
    """Which tensors become FP8."""

    quantized: frozenset[str]  # tensors
    not_converted: tuple[str, ...]  # modules, as "modules_to_not_convert" names them
    left_plain: tuple[str, ...]  # weights of linear layers that have no whole blocks, or are joined with such


def select(tensors: Mapping[str, Described]) -> Selection:
    """Choose the tensors that become FP8."""
    linear = {name for name, tensor in tensors.items() if _is_linear(name, tensor)}
    plain = {name for name in linear if any(size % BLOCK or not size for size in tensors[name].shape)}
    quantized = frozenset(linear - plain - _joined_with(plain, linear))
    modules = {_module(name) for name in quantized}
    left = {spelling for name in tensors.keys() - quantized for spelling in _spellings(name, tensors[name])}
    named = sorted(
        name for name in left | _OUTSIDE | _LAYERS_OUTSIDE if not any(_is_matched(module, name) for module in modules)
    )
    return Selection(quantized, tuple(named), tuple(sorted(linear - quantized)))


def _is_linear(name: str, tensor: Described) -> bool:
    *path, kind = name.split(".")
    return (
        kind == "weight"
        and tensor.dtype in _FLOATS
        and len(tensor.shape) == 2
        and any(part.isdecimal() for part in path)
        and _OUTSIDE.isdisjoint(path)
        and not any(_NOT_LINEAR.search(part) for part in path)
    )


def _joined_with(plain: set[str], linear: set[str]) -> set[str]:
    """Weights that engines join with one that stays plain."""
    groups: dict[tuple[str, tuple[str, ...]], set[str]] = defaultdict(set)
    for name in linear:
        parent, _, own = _module(name).rpartition(".")
        if own in _JOINED:
            groups[parent, _JOINED[own]].add(name)
    return set().union(*(group for group in groups.values() if group & plain))


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _spellings(name: str, tensor: Described) -> set[str]:
    """Names of a plain matrix's module: in a class with a head around the bare model, and in the bare model."""
    if len(tensor.shape) < 2 or tensor.dtype not in _FLOATS:
        return set()
    module = _module(name)
    before, experts, _ = module.partition(".experts.")
    found = {module, before + experts[:-1]} if experts else {module}
    return found | {bare for each in found if (bare := _bare(each))}


def _bare(module: str) -> str | None:
    """The name without its first part, where the rest still identifies one layer."""
    first, _, rest = module.partition(".")
    return rest if "." in rest and not rest.split(".")[0].isdecimal() and not first.isdecimal() else None


def _is_matched(module: str, name: str) -> bool:
    """Whether transformers matches `name` with this module: as its end, or as its first parts."""
    return module.endswith(name) or module == name or module.startswith(f"{name}.")


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the model as it is."""

    file: Path
    places: dict[str, ByteRange]  # by tensor


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor, and what becomes of it."""

    name: str
    source: ByteRange
    begin: int  # bytes from the beginning of the new file
    scales_begin: int | None  # the same of its scales; None = it is copied


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one new file."""

    header: NewHeader
    pieces: tuple[PlannedTensor, ...]


def scale_name(weight: str) -> str:
    """The name of the scales that multiply this weight; "inv" is the format's word."""
    return f"{weight}_scale_inv"


def layout(source: Source, quantized: frozenset[str]) -> Layout:
    """Where each tensor will be in the new file."""
    header = new_header(dict(_new_tensors(source, quantized)))
    pieces = tuple(
        PlannedTensor(name, source.places[name], begin, header.begins[scale_name(name)] if name in quantized else None)
        for name, begin in header.begins.items()
        if name in source.places
    )
    return Layout(header, pieces)


def _new_tensors(source: Source, quantized: frozenset[str]) -> Iterator[tuple[str, Described]]:
    for name, place in source.places.items():
        if name not in quantized:
            yield name, place
            continue
        num_rows, num_columns = place.shape
        yield name, torch.empty(place.shape, dtype=torch.float8_e4m3fn, device="meta")
        yield scale_name(name), torch.empty(num_rows // BLOCK, num_columns // BLOCK, device="meta")


@dataclass(frozen=True, slots=True)
class QuantizePlan:
    """Everything that is decided before the first weight is read."""

    sources: dict[str, Source]  # by the file's name, old and new
    layouts: dict[str, Layout]
    copied: dict[str, Path]  # relative name, with / -> the file itself
    written: dict[str, str]  # the same -> text
    left_plain: tuple[str, ...]  # see Selection


def plan(folder: Path) -> QuantizePlan:
    """Plan the folder's quantized copy. Raises ModelError with one line where the model can't be quantized."""
    files = copied_files(folder)
    sources = _sources(folder, files)
    config = read_object(folder / CONFIG)
    if config.get("model_type") in _TRANSPOSED:
        raise ModelError(f"the layers of {config['model_type']} are stored transposed, which FP8 does not support")
    if quantization.check(folder, reads_fp8=True) is not None:
        raise ModelError("the weights are stored quantized already: take the model's plain weights")
    selection = _selection(sources)
    layouts = {name: layout(source, selection.quantized) for name, source in sources.items()}
    written = {CONFIG: _text({**config, "quantization_config": _quantization_config(selection)})}
    if list(sources) != [_SINGLE]:
        written[_INDEX] = _text(_index(layouts))
    left_out = {*written, _OF_PLAIN}
    copied = {name: path for name, path in files.items() if name not in left_out and not _is_of_weights(name, sources)}
    return QuantizePlan(sources, layouts, copied, written, selection.left_plain)


def _sources(folder: Path, files: dict[str, Path]) -> dict[str, Source]:
    found = {}
    for file in checkpoint_files(folder):
        name = file.relative_to(folder).as_posix() if file.is_relative_to(folder) else ""
        if name not in files or "/" in name:
            raise ModelError(
                f"{folder} lacks {file.name!r}: only safetensors beside config.json are quantized "
                "(embedline convert makes them of pytorch_model.bin)"
            )
        try:
            found[name] = Source(files[name], byte_ranges(files[name]))
        except (OSError, ValueError, TypeError) as error:
            raise ModelError(f"{file} is not a safetensors file") from error
    return found


def _selection(sources: dict[str, Source]) -> Selection:
    counted = Counter(name for source in sources.values() for name in source.places)
    if any(number > 1 for number in counted.values()):
        raise ModelError("two files of weights have a tensor of the same name")
    selection = select({name: place for source in sources.values() for name, place in source.places.items()})
    if not selection.quantized:
        raise ModelError(f"nothing to quantize: no linear layer's sizes are multiples of {BLOCK}")
    if any(scale_name(name) in counted for name in selection.quantized):
        raise ModelError("the weights have scales already: take the model's plain weights")
    return selection


def _is_of_weights(name: str, sources: dict[str, Source]) -> bool:
    """Files of weights: those that are quantized, and other copies of them that nothing here reads."""
    path = PurePosixPath(name)
    is_other = path.name == name and path.suffix == ".safetensors" and path.name.startswith(("model-", "consolidated"))
    return name in sources or is_other or name in (_SINGLE, _INDEX)


def _quantization_config(selection: Selection) -> Json:
    """The entry of config.json, as transformers' FineGrainedFP8Config has it."""
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": list(selection.not_converted),
    }


def _index(layouts: dict[str, Layout]) -> Json:
    size = sum(each.header.num_bytes - len(each.header.content) for each in layouts.values())
    weight_map = {tensor: file for file, each in layouts.items() for tensor in each.header.begins}
    return {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}


def _text(value: Json) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"

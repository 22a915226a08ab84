"""Plans a quantized folder, from a model's JSON files and the headers of its weights. Reads no weight.

The folder may be hostile: engine.tools.convert.plan, which finds its files, checks that.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.model import quantization
from engine.model.json_files import Json, read_object
from engine.model.weights import weight_files
from engine.store.tensor_file import places
from engine.tools.convert.plan import copied_files
from engine.tools.quantize.layout import Layout, Source, layout, scale_name
from engine.tools.quantize.selection import BLOCK, Selection, select
from engine.types import ModelError

CONFIG, _INDEX, _SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
# Not copied: TensorRT-LLM reads it before config.json, and it describes the plain weights.
_OF_PLAIN = "hf_quant_config.json"
# Their layers are stored transposed, so programs that read FP8 do not take them for linear layers.
_TRANSPOSED = frozenset(("gpt2", "openai-gpt"))


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is decided before the first weight is read."""

    sources: dict[str, Source]  # by the file's name, old and new
    layouts: dict[str, Layout]
    copied: dict[str, Path]  # relative name, with / -> the file itself
    written: dict[str, str]  # the same -> text
    left_plain: tuple[str, ...]  # weights of linear layers whose sizes are no multiples of BLOCK


def plan(folder: Path) -> Plan:
    """Raises ModelError with one line where the model can't be quantized."""
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
    return Plan(sources, layouts, copied, written, selection.left_plain)


def _sources(folder: Path, files: dict[str, Path]) -> dict[str, Source]:
    found = {}
    for file in weight_files(folder):
        name = file.relative_to(folder).as_posix() if file.is_relative_to(folder) else ""
        if name not in files or "/" in name:
            raise ModelError(
                f"{folder} lacks {file.name!r}: only safetensors beside config.json are quantized "
                "(embedline convert makes them of pytorch_model.bin)"
            )
        try:
            found[name] = Source(files[name], places(files[name]))
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
    """As transformers' FineGrainedFP8Config has it."""
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

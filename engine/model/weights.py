"""A model's weights files: which there are, what their headers say, and the tensors of small modules as numpy arrays.

Needs no library of tensors but numpy. A safetensors file begins with the length of its header (u64, little-endian) and
the header, a JSON object: name of a tensor -> {"dtype": …, "shape": [...], "data_offsets": [begin, end]}
(https://huggingface.co/docs/safetensors). Each byte after the header belongs to one tensor. Large weights are read by
the engines, not here.
"""

import itertools
import json
import math
import operator
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.model.card import plain_form
from engine.model.json_files import object_in, read_object
from engine.model.tasks import Dense, LayerNorm, Normalize, Shapes, Step
from engine.types import ModelError
from wire.placeholder import placeholder

_INDEX = "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")  # either is a folder's weights as pickles
_DISTRIBUTED = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors")
_MAX_HEADER = 100_000_000  # bytes; the limit of the safetensors library
# What weights are for other programs: ends of names of files.
_OTHER_FORMS = {
    **{".gguf": "GGUF", ".onnx": "ONNX", "openvino_model.xml": "OpenVINO's form", "weights.npz": "MLX's form"},
    **{".tflite": "TFLite", ".mlpackage": "Core ML's form", ".mlmodel": "Core ML's form"},
}
_UNREAD_WEIGHTS = frozenset((".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"))
PLAIN = frozenset(("F64", "F32", "F16", "BF16"))  # dtypes of plain numbers
Arrays = dict[str, NDArray[np.float32]]  # of a module, by name
QUERY_WEIGHTS = "weight"  # the tensor of a SparseStaticEmbedding
_NUMPY_DTYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"},
    **{"I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"},
}
_BITS_OF_BF16 = np.dtype("<u2")  # no other dtype is stored as this
# Numbers that older versions of the library wrote down: they follow from the configuration.
_FOLLOWS = ("position_ids", "inv_freq", "original_inv_freq", "masked_bias", "attn.bias", "relative_position_index")
# BERT's second head of pre-training, which is inside the part that scores the vocabulary.
_OTHER_HEADS = ("cls.seq_relationship.",)
# Differences that training left in DeBERTa-v3's files beside the table itself.
_LEFT_OVER = ("word_embeddings._weight",)
_MALFORMED = (OSError, ValueError, KeyError, TypeError, OverflowError)  # what a file that is none raises


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """The size of all weights files together."""

    num_bytes: int
    num_parameters: dict[str, int]  # by dtype, in safetensors' spelling: F32, BF16, …


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a weights file, without its numbers."""

    name: str
    file: Path
    dtype: str  # in safetensors' spelling: F32, BF16, …
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """The tensor in words, for messages."""
        return f"{self.name!r} in {self.file}"


@dataclass(frozen=True, slots=True)
class Header:
    """The header of one file, unchecked."""

    tensors: dict[str, Any]  # by name; see above
    end: int  # byte of the file from which the tensors' offsets count


def weights_of(folder: Path, others: Iterable[Path] = ()) -> WeightSizes:
    """The weights in a model folder and in the files `others`. Raises ModelError if a file is wrong."""
    num_bytes, num_parameters = 0, Counter[str]()
    for file in (*checkpoint_files(folder), *others):
        try:
            for tensor in _tensors_of(file).values():
                begin, end = tensor["data_offsets"]
                num_bytes += end - begin
                num_parameters[str(tensor["dtype"])] += math.prod(tensor["shape"])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise _not_safetensors(file) from error
    return WeightSizes(num_bytes, dict(num_parameters))


def _tensors_of(file: Path) -> dict[str, Any]:
    """The header's tensors. Raises ModelError if it is no safetensors file, or not of the size that the header says."""
    try:
        header, size = header_of(file), file.stat().st_size
        end = header.end + _end_of_tensors(file, header.tensors)
    except PermissionError as error:
        raise ModelError(f"{file} can't be read: {error.strerror}") from error
    except (OSError, ValueError, LookupError, TypeError, OverflowError) as error:
        raise _not_safetensors(file) from error
    if size < end:
        raise ModelError(f"{file} is cut short: it has {size} of {end} bytes; copy or fetch it again")
    if size > end:
        raise ModelError(f"{file} has {size} bytes, and its header tells of {end}; copy or fetch it again")
    return header.tensors


def _end_of_tensors(file: Path, tensors: dict[str, Any]) -> int:
    """The byte behind the last one. Raises ModelError if tensors overlap or leave bytes between them; ValueError,
    LookupError or TypeError if the offsets are none."""
    end, before = 0, ""
    places = {name: tuple(map(operator.index, tensor["data_offsets"])) for name, tensor in tensors.items()}
    for name, (begin, after) in sorted(places.items(), key=lambda item: item[1]):
        if not 0 <= begin <= after:
            raise ValueError("no tensor is there")
        if begin < end:
            raise ModelError(f"{file} is damaged: the tensors {before!r} and {name!r} lie in the same bytes")
        if begin > end:
            raise ModelError(f"{file} is damaged: {begin - end} bytes before the tensor {name!r} belong to none")
        end, before = after, name
    return end


def _not_safetensors(file: Path) -> ModelError:
    return ModelError(placeholder(file) or f"{file} is not a safetensors file")


def checkpoint_files(folder: Path) -> list[Path]:
    """The weights files of a model folder. Raises ModelError."""
    if not (folder / _INDEX).is_file() or (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    names = {str(name) for name in object_in(read_object(folder / _INDEX), "weight_map").values()}
    return [folder / name for name in sorted(names)]


def header_of(file: Path) -> Header:
    """The header of a safetensors file. Raises OSError, ValueError or TypeError if it is none."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > _MAX_HEADER:
            raise ValueError("no header is so long")
        try:
            tensors = dict(json.loads(opened.read(size)))
        except RecursionError as error:
            raise ValueError("no header is nested so deeply") from error
    tensors.pop("__metadata__", None)
    return Header(tensors, 8 + size)


def tensors_in(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of all weights files of a model folder, by name. Raises ModelError if a file is wrong.

    Also if two files hold the same tensor, for libraries differ in which of them they read.
    """
    found: dict[str, StoredTensor] = {}
    for tensor in itertools.chain.from_iterable(map(stored_tensors, checkpoint_files(folder))):
        first = found.setdefault(tensor.name, tensor)
        if first is not tensor:
            raise ModelError(
                f"{first.file} and {tensor.file.name} both hold the tensor {tensor.name!r}; fetch the model's files "
                "again"
            )
    return found


def shapes_in(file: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in a safetensors file. Raises ModelError."""
    return {tensor.name: tensor.shape for tensor in stored_tensors(file)}


def stored_tensors(file: Path) -> list[StoredTensor]:
    """The tensors of a safetensors file. Raises ModelError if it is wrong."""
    tensors = _tensors_of(file)
    try:
        found = [
            StoredTensor(name, file, str(tensor["dtype"]), tuple(map(int, tensor["shape"])))
            for name, tensor in tensors.items()
        ]
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise _not_safetensors(file) from error
    if any(size < 0 for tensor in found for size in tensor.shape):
        raise _not_safetensors(file)
    return found


def has_safetensors(folder: Path) -> bool:
    """Whether the folder has safetensors files, or an index of some."""
    return any((folder / name).is_file() for name in ("model.safetensors", _INDEX))


def has_pickles(folder: Path) -> bool:
    """Whether the folder has weights that `embedline convert` reads."""
    return any((folder / name).is_file() for name in PICKLED)


def has_weights(folder: Path) -> bool:
    """Whether the folder has weights in a form that is read or converted."""
    return has_safetensors(folder) or has_pickles(folder)


def check_weights(folder: Path) -> None:
    """Raises ModelError if a safetensors file is not whole, or missing; then the message says how to make it.

    Also if the index does not match the files, and if there are others that transformers would read instead.
    """
    _check_are_there(folder)
    for file in folder.iterdir():
        if _DISTRIBUTED.fullmatch(file.name):
            raise ModelError(f"{file} is of a distributed checkpoint, which is not read; move such files elsewhere")
    found = tensors_in(folder)
    if (folder / "model.safetensors").is_file():
        return
    for name, file in object_in(read_object(folder / _INDEX), "weight_map").items():
        if name not in found or found[name].file.name != file:
            where = f"; it is in {found[name].file.name}" if name in found else ""
            raise ModelError(
                f"{folder / _INDEX} says that {name!r} is in {str(file)!r}, which lacks it{where}; fetch the model's "
                "files again"
            )


def _check_are_there(folder: Path) -> None:
    index = folder / _INDEX
    if (folder / "model.safetensors").is_file():
        return
    if index.is_file():
        shards = {str(shard) for shard in object_in(read_object(index), "weight_map").values()}
        if any(Path(shard).name != shard for shard in shards):
            raise ModelError(f"{index} names a file that is not in its folder")
        missing = sorted(shard for shard in shards if not (folder / shard).is_file())
        if missing:
            raise ModelError(f"{folder} lacks {missing[0]!r}, which {_INDEX} names")
        return
    unread = sorted(file.name for file in folder.glob("*") if file.suffix in _UNREAD_WEIGHTS)
    found = f"; {', '.join(unread[:3])} is not read, for such files can run code" if unread else ""
    raise ModelError(f"{folder} has no model.safetensors; only *.safetensors are read{found}{_way_out(folder)}")


def check_forms(folder: Path, listed: Iterable[str] | None = None) -> None:
    """Raises ModelError where the weights are only in forms that are made for other programs.

    listed: all files of the model's repository, of which the folder has a part.
    """
    files = (path.name for path in (*folder.glob("*"), *folder.glob("*/*")))
    names = [name.rpartition("/")[2] for name in (files if listed is None else listed)]
    if any(name.endswith(".safetensors") or name.startswith("pytorch_model") for name in names):
        return
    forms = sorted({form for end, form in _OTHER_FORMS.items() if any(name.endswith(end) for name in names)})
    if forms:
        raise ModelError(
            f"{folder} has its weights as {' and '.join(forms)}, and only *.safetensors are read{plain_form(folder)}"
        )


def _way_out(folder: Path) -> str:
    """The end of a message: the command that makes safetensors files."""
    if has_pickles(folder):
        return f": embedline convert {shlex.quote(str(folder))} OUT"
    return "; embedline convert MODEL OUT makes them of pytorch_model.bin, where the model has that"


def step_files(folder: Path, steps: Iterable[Step]) -> list[Path]:
    """The files with the tensors of these steps. A Normalize has none."""
    return [_file(folder, step) for step in steps if not isinstance(step, Normalize)]


def read_arrays(folder: Path, steps: Sequence[Step]) -> list[Arrays]:
    """The tensors of each step. Raises ModelError if a file does not match its step."""
    return [{} if isinstance(step, Normalize) else _read(_file(folder, step), step) for step in steps]


def read_query_weights(folder: Path) -> NDArray[np.float32]:
    """The weights [V] of a SparseStaticEmbedding in this folder. Raises ModelError if its file has none."""
    file = folder / "model.safetensors"
    try:
        found = _array(file, header_of(file), QUERY_WEIGHTS)
    except _MALFORMED as error:
        raise ModelError(f"{file} can't be read as a safetensors file with {QUERY_WEIGHTS!r}") from error
    if found.ndim != 1 or not np.isfinite(found).all():
        raise ModelError(f"{file}: {QUERY_WEIGHTS!r} is not one finite number for each token")
    return found


def read_tensor(stored: StoredTensor) -> NDArray[np.float32]:
    """A tensor of a weights file. Raises ModelError if the file can't be read."""
    try:
        return _array(stored.file, header_of(stored.file), stored.name)
    except _MALFORMED as error:
        raise ModelError(f"{stored.file} can't be read as a safetensors file") from error


def read_tensors(file: Path) -> dict[str, NDArray[np.float32]]:
    """All tensors of a weights file by name, for which it is read once: of float32 they are parts of its bytes. Raises
    ModelError if the file can't be read."""
    try:
        header, whole = header_of(file), np.fromfile(file, np.uint8)
        return {name: as_float32(_stored(whole, header, name)) for name in header.tensors}
    except _MALFORMED as error:
        raise ModelError(f"{file} can't be read as a safetensors file") from error


def _file(folder: Path, step: Dense | LayerNorm) -> Path:
    return folder / step.folder if step.is_file else folder / step.folder / "model.safetensors"


def _read(file: Path, step: Dense | LayerNorm) -> Arrays:
    try:
        header = header_of(file)
        names = _tensor_names(header.tensors, step)
        _check_shapes(file, {name: tuple(header.tensors[there]["shape"]) for name, there in names.items()}, step)
        found = {name: _array(file, header, names[name]) for name in step.shapes}
    except _MALFORMED as error:
        raise ModelError(f"{file} can't be read as a safetensors file") from error
    wrong = [name for name, array in found.items() if not np.isfinite(array).all()]
    if wrong:
        raise ModelError(f"{file}: {names[wrong[0]]!r} is not finite")
    return found


def _tensor_names(tensors: dict[str, Any], step: Dense | LayerNorm) -> dict[str, str]:
    """The step's name of each tensor -> the file's name. A module's file holds only that module."""
    if not step.is_file:
        return {name: name for name in tensors}
    spelled = {name: (name, name.removeprefix("linear.")) for name in step.shapes}
    return {name: there for name, ways in spelled.items() for there in ways if there in tensors}


def _check_shapes(file: Path, found: Shapes, step: Dense | LayerNorm) -> None:
    wanted, by = step.shapes, "" if step.is_file else f", by {step.source}"
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or unknown:
        what = f"lacks the tensor {missing[0]!r}" if missing else f"has a tensor {unknown[0]!r} too many"
        raise ModelError(f"{file} {what}{by}")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise ModelError(f"{file}: {name!r} is {found[name]}, not {shape}{by}")


def mapped(file: Path, header: Header, name: str) -> NDArray[Any]:
    """A tensor as it is stored, of a file that is mapped into memory; bfloat16 as uint16, see `as_float32`. Raises
    OSError, ValueError if its size does not match its shape, KeyError for an unknown dtype."""
    return _stored(np.memmap(file, np.uint8, mode="r"), header, name)


def _stored(whole: NDArray[np.uint8], header: Header, name: str) -> NDArray[Any]:
    tensor = header.tensors[name]
    dtype = np.dtype(_NUMPY_DTYPES[tensor["dtype"]])
    begin, end = tensor["data_offsets"]
    if not 0 <= begin <= end <= len(whole) - header.end:
        raise ValueError("it is cut short")
    return np.asarray(whole[header.end + begin : header.end + end]).view(dtype).reshape(tensor["shape"])


def as_float32(values: NDArray[Any], *, copy: bool = False) -> NDArray[np.float32]:
    """The numbers of `mapped`. copy: never a view of the file."""
    if values.dtype == _BITS_OF_BF16:  # the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=copy)


def _array(file: Path, header: Header, name: str) -> NDArray[np.float32]:
    if header.tensors[name]["dtype"] not in PLAIN:
        raise ValueError("it is not stored in plain numbers")
    return as_float32(mapped(file, header, name), copy=True)


def check_read(unread: Mapping[str, object], parts: Collection[str], *, architecture: str) -> None:
    """Raises ModelError if one of the unread weights is inside a part.

    unread: names of weights, without the base model's prefix, and for messages where each one is. parts: the first
    words of the weights' names that are read, such as "encoder".
    """
    others = sorted(name for name in unread if name.partition(".")[0] in parts and not _changes_nothing(name))
    if others:
        which = f"the weight {unread[others[0]]}" + (f", and {len(others) - 1} others" if len(others) > 1 else "")
        raise ModelError(
            f"{which}: {architecture!r} with this config.json has none of that name, so its rows would be another "
            "model's; check num_hidden_layers and what else config.json says"
        )


def _changes_nothing(name: str) -> bool:
    return name.startswith(_OTHER_HEADS) or any(
        name == ending or name.endswith(f".{ending}") for ending in (*_FOLLOWS, *_LEFT_OVER)
    )

"""Merges a PEFT adapter into the tensors of its base's checkpoint, with numpy alone.

What an adapter changes is stored as float32, because small changes would be lost in the rounding of what most weights
are stored as. All else is copied as it is, a tensor at a time.
"""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from engine.convert.checkpoint_names import Place, find
from engine.model.lora import WEIGHTS, Adapter, AdapterLayer
from engine.model.weights import PLAIN, StoredTensor, checkpoint_files, header_of, read_tensor, read_tensors, tensors_in
from engine.types import ModelError

Array = NDArray[np.float32]
Step = Callable[[Array], Array]
_Read = Callable[[StoredTensor], Array]
Report = Callable[[int, int], None]  # bytes that are written, and of all

_INDEX = "model.safetensors.index.json"
_CONV1D = ("gpt2", "openai-gpt")  # model types whose layers' weights are [in, out]
_OF_CONV1D = ("c_attn", "c_proj", "c_fc", "q_attn")  # the layers, which are not all that such a model has
# Names of tensors with a row for each token: tables, and layers that score the vocabulary, which may be tied to these.
_OF_OUTPUT = re.compile(
    r"(^|\.)(lm_head|embed_out|vocab_projector|(predictions|lm_head)\.decoder|^decoder)\.(weight|bias)$"
)
_OF_TABLES = re.compile(rf"(word_embeddings|embed_tokens|tok_embeddings|wte|shared)\.weight$|{_OF_OUTPUT.pattern}")
_CHUNK = 16 << 20  # bytes copied at once
_ALIGNMENT = 8  # bytes, of the first tensor
_F32 = 4  # bytes


@dataclass(slots=True)
class _Change:
    """What becomes of a tensor. It is made anew of `source`, one step after the other."""

    source: StoredTensor  # the base's, or one that the adapter brings along
    steps: list[Step] = field(default_factory=list)
    of: list[StoredTensor] = field(default_factory=list)  # the adapter's, for messages

    @property
    def num_bytes(self) -> int:
        """Of the new tensor."""
        return _F32 * math.prod(self.source.shape)

    def made(self) -> Array:
        """The new numbers. Raises ModelError if they are not finite."""
        found = read_tensor(self.source)
        with np.errstate(all="ignore"):  # the numbers that come out are looked at
            for step in self.steps:
                found = step(found)
        if not np.isfinite(found).all():
            raise ModelError(f"{(self.of or [self.source])[-1]} makes {self.source} a tensor that is not finite")
        return found


class Merge:
    """An adapter and the base that it fits."""

    def __init__(self, adapter: Adapter, base: Path, *, model_type: str, new_modules: Iterable[str]) -> None:
        """base: the folder of its weights. new_modules: names of modules that the adapter may bring along, with other
        sizes than the base's. Raises ModelError naming the adapter's tensor that does not fit."""
        self._adapter, self.base = adapter, base
        self._stored = tensors_in(base)
        self._is_conv1d = model_type in _CONV1D
        self._changes: dict[str, _Change] = {}
        self._layers: dict[Place, StoredTensor] = {}  # what each layer's adapter changes
        for name, tensor in adapter.whole.items():
            self._replace(name, tensor, is_new=any(f".{module}." in f".{name}" for module in new_modules))
        for layer, found in adapter.layers.items():
            self._add(layer, found, is_table=False)
        for layer, found in adapter.tables.items():
            self._add(layer, found, is_table=True)
        for layer, factor in adapter.factors.items():
            self._multiply(layer, factor)

    @cached_property
    def _numbers(self) -> dict[str, Array]:
        """Of all the adapter's tensors: to read its file once for each takes long."""
        return read_tensors(self._adapter.folder / WEIGHTS)

    def _read(self, tensor: StoredTensor) -> Array:
        return self._numbers[tensor.name]

    @property
    def num_bytes(self) -> int:
        """The size of the new weights, or a little more."""
        old = sum(file.stat().st_size for file in checkpoint_files(self.base))
        return old + sum(change.num_bytes for change in self._changes.values())

    @property
    def in_words(self) -> str:
        """What is changed, for logs."""
        extras = f" ({', '.join(sorted(self._adapter.extras))})" if self._adapter.extras else ""
        return f"{len(self._changes):,} of {len(self._stored):,} tensors{extras}"

    def write(self, folder: Path, report: Report) -> None:
        """Put the weights into an empty folder. Raises ModelError, OSError."""
        files, total = checkpoint_files(self.base), self.num_bytes
        done = 0
        weight_map: dict[str, str] = {}
        for file in files:
            here = {name: tensor for name, tensor in self._stored.items() if tensor.file == file}
            changes = {name: change for name, change in self._changes.items() if name in here}
            if file == files[-1]:
                changes |= {name: change for name, change in self._changes.items() if name not in self._stored}
            kept = {name: tensor for name, tensor in here.items() if name not in changes}
            for size in _write(folder / file.name, file, kept, changes):
                done += size
                report(min(done, total), total)
            weight_map |= dict.fromkeys((*kept, *changes), file.name)
        if files != [self.base / "model.safetensors"]:
            index = {"metadata": {"total_size": done}, "weight_map": weight_map}
            (folder / _INDEX).write_text(json.dumps(index, indent=2))

    def _place(self, name: str, by: StoredTensor) -> Place:
        """The base's tensor of this name, which is to be changed. Raises ModelError where there is none."""
        found = find(name, self._stored, self.base)
        if found is None and _OF_OUTPUT.search(name):
            raise ModelError(
                f"{by} changes {name!r}, the output layer, which the base in {self.base} does not store: it is tied to "
                "the table of tokens, or left out. Train the adapter without it ('target_modules', 'modules_to_save')"
            )
        if found is None:
            raise self._does_not_fit(by, f"changes {name!r}, which the base in {self.base} lacks")
        tensor = self._stored[found.name]
        if tensor.dtype not in PLAIN:
            raise ModelError(
                f"{by} changes {tensor}, which is stored as {tensor.dtype}; an adapter is merged into plain weights "
                "alone"
            )
        self._changes.setdefault(found.name, _Change(tensor)).of.append(by)
        return found

    def _change(self, place: Place, by: StoredTensor, shape: tuple[int, ...], step: Step) -> None:
        """Take the step with the tensor, or with its share. shape: of what the adapter changes. Raises ModelError where
        that has another one."""
        change = self._changes[place.name]
        found = change.source.shape
        if found[:1] != (shape[0] * place.num_shares,) or found[1:] != shape[1:]:
            if found[1:] == shape[1:] and _OF_TABLES.search(place.name):
                raise ModelError(
                    f"{by} is for {shape[0]:,} tokens, and {change.source} has {found[0]:,}: it is another base, or "
                    "the vocabulary was resized for the adapter. Save the base as it was resized, and name that as "
                    f"'base_model_name_or_path' in {self._adapter.config_file}"
                )
            part = f"one of {place.num_shares} equal parts of " if place.num_shares > 1 else ""
            raise self._does_not_fit(
                by, f"is for a tensor of the shape {list(shape)}, and {part}{change.source} has {list(found)}"
            )
        change.steps.append(step if place.num_shares == 1 else partial(_of_share, place=place, step=step))

    def _does_not_fit(self, tensor: StoredTensor, why: str) -> ModelError:
        return ModelError(
            f"{tensor} {why}; 'base_model_name_or_path' in {self._adapter.config_file} must name the adapter's own base"
        )

    def _replace(self, name: str, tensor: StoredTensor, *, is_new: bool) -> None:
        found = find(name, self._stored, self.base)
        if is_new and (found is None or found.num_shares == 1):
            self._changes[found.name if found else name] = _Change(tensor)
        else:
            self._change(self._place(name, tensor), tensor, tensor.shape, partial(self._replaced, by=tensor))

    def _add(self, layer: str, found: AdapterLayer, *, is_table: bool) -> None:
        is_transposed = is_table or self._has_columns(layer)
        shape = found.shape[::-1] if is_transposed else found.shape
        place = self._taken(self._place(f"{layer}.weight", found.a), found.a)
        self._change(
            place, found.a, shape, partial(_with_layer, read=self._read, layer=found, is_transposed=is_transposed)
        )
        if found.bias is not None:
            if find(f"{layer}.bias", self._stored, self.base) is None:
                raise ModelError(
                    f"{found.bias} is a bias ('lora_bias') of the layer {layer!r}, which has none in the base to take "
                    f"it: serve the base with --lora NAME={self._adapter.folder}, which keeps the adapter apart"
                )
            place = self._place(f"{layer}.bias", found.bias)
            step = partial(_with_bias, read=self._read, of_layer=found.bias, scale=found.scale)
            self._change(place, found.bias, found.bias.shape, step)

    def _taken(self, place: Place, by: StoredTensor) -> Place:
        """Raises ModelError where another layer has taken the same."""
        if place in self._layers:
            raise ModelError(f"{self._layers[place]} and {by} both change {self._stored[place.name]}")
        self._layers[place] = by
        return place

    def _multiply(self, layer: str, factor: StoredTensor) -> None:
        place = self._taken(self._place(f"{layer}.weight", factor), factor)
        rows, columns = (*self._changes[place.name].source.shape, 0, 0)[:2]
        is_transposed, is_of_rows = self._has_columns(layer), factor.shape[1:] == (1,)
        size = max(factor.shape)
        shape = (size, columns) if is_of_rows != is_transposed else (rows // place.num_shares, size)
        self._change(
            place, factor, shape, partial(_multiplied, read=self._read, factor=factor, is_transposed=is_transposed)
        )
        if is_of_rows and find(f"{layer}.bias", self._stored, self.base):
            bias = self._place(f"{layer}.bias", factor)
            self._change(bias, factor, (size,), partial(_multiplied_bias, read=self._read, factor=factor))

    def _replaced(self, tensor: Array, *, by: StoredTensor) -> Array:
        return self._read(by)

    def _has_columns(self, layer: str) -> bool:
        """Whether the layer's weight is [in, out]."""
        return self._is_conv1d and layer.rpartition(".")[2] in _OF_CONV1D


def _of_share(tensor: Array, *, place: Place, step: Step) -> Array:
    """The tensor, of which the step is taken with a share of its rows."""
    parts = np.split(tensor, place.num_shares)
    parts[place.number] = step(parts[place.number])
    return np.concatenate(parts)


def _with_layer(weight: Array, *, read: _Read, layer: AdapterLayer, is_transposed: bool) -> Array:
    made = layer.merged_into(weight.T if is_transposed else weight, read)
    return made.T if is_transposed else made


def _with_bias(bias: Array, *, read: _Read, of_layer: StoredTensor, scale: float) -> Array:
    return bias + np.float32(scale) * read(of_layer)


def _multiplied(weight: Array, *, read: _Read, factor: StoredTensor, is_transposed: bool) -> Array:
    factors = read(factor)
    return weight * (factors.T if is_transposed else factors)


def _multiplied_bias(bias: Array, *, read: _Read, factor: StoredTensor) -> Array:
    return bias * read(factor).reshape(bias.shape)


def _write(file: Path, source: Path, kept: Mapping[str, StoredTensor], changes: Mapping[str, _Change]) -> Iterator[int]:
    """A new safetensors file: bytes of each tensor, when it is written. kept: tensors of `source` that stay as they
    are. Large numbers come first, so that each is at a multiple of its size. Raises ModelError, OSError."""
    old = header_of(source)
    spans = {name: old.tensors[name]["data_offsets"] for name in kept}
    sizes = {name: end - begin for name, (begin, end) in spans.items()}
    sizes |= {name: change.num_bytes for name, change in changes.items()}
    tensors = {**kept, **{name: dataclasses.replace(each.source, dtype="F32") for name, each in changes.items()}}
    ordered = sorted(tensors, key=lambda name: (-sizes[name] // max(math.prod(tensors[name].shape), 1), name))
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in ordered:
        begin, end = end, end + sizes[name]
        shape = list(tensors[name].shape)
        entries[name] = {"dtype": tensors[name].dtype, "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    with file.open("xb") as opened, source.open("rb") as stream:
        opened.write(len(header).to_bytes(8, "little") + header)
        for name in ordered:
            if name in changes:
                opened.write(np.ascontiguousarray(changes[name].made(), "<f4").data)
            else:
                stream.seek(old.end + spans[name][0])
                _copy(stream, sizes[name], opened)
            yield sizes[name]


def _copy(source: BinaryIO, num_bytes: int, target: BinaryIO) -> None:
    while num_bytes:
        chunk = source.read(min(num_bytes, _CHUNK))
        if not chunk:
            raise ModelError(f"{source.name} was cut short meanwhile")
        target.write(chunk)
        num_bytes -= len(chunk)

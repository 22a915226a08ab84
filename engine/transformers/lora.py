"""Computes the LoRA adapters that are kept apart from a model: layers to which each adapter adds its own product.

Sequences of several adapters share a batch. What is computed of a batch stands in runs of rows with the same adapter,
and each run takes one pair of thin matrices: for a run of rows x, scale (x Aᵀ) Bᵀ is added to what the layer gives.
The alternative, one product for all adapters of which each row keeps its own part, costs more with every adapter.

A forward says which rows have which adapter by `adapted`, for its own thread. Without it the layers are the model's.

DoRA (Liu et al. 2024, arXiv 2402.09353) scales each output by m / |W + scale B A|, a row's length. That is computed
once, here, while the layer still has its plain weights: see `prepack`. Biases of a layer that an adapter brings are
differences from what the layer adds anyway.

Shapes: N rows, in, out of a layer; R, the rank of an adapter.
"""

import contextlib
import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from engine.machine.failures import one_line
from engine.model.lora import Adapter, AdapterLayer, fitted
from engine.model.model_folder import ModelFolder
from engine.model.tasks import SequenceScores
from engine.model.weights import StoredTensor
from engine.types import Batch, ModelError
from wire.parts import OF_SEQUENCES, Part

_POOLER, _BIAS = "pooler", ".bias"


@dataclass(frozen=True, slots=True)
class Run:
    """Rows next to each other that one adapter computes."""

    adapter: int  # its number; 0 = none
    begin: int  # the first row
    end: int  # the row after the last


_RUNS: ContextVar[tuple[Run, ...]] = ContextVar("runs of adapters", default=())  # of all rows; () = none has any


@contextlib.contextmanager
def adapted(numbers: NDArray[np.int32] | None) -> Iterator[None]:
    """Have this thread's layers compute each row with the adapter of this number; None = the model alone.

    numbers: [N], of the rows that the layers are given, whatever their shape; where all are equal, N does not count.
    """
    token = _RUNS.set(() if numbers is None or not numbers.any() else _runs(numbers))
    try:
        yield
    finally:
        _RUNS.reset(token)


def _runs(numbers: NDArray[np.int32]) -> tuple[Run, ...]:
    bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    return tuple(Run(int(numbers[begin]), begin, end) for begin, end in pairwise(bounds))


def adapters_of_tokens(batch: Batch) -> NDArray[np.int32] | None:
    """The number of each token's adapter [T]; None where none has any."""
    if batch.adapters is None or not batch.adapters.any():
        return None
    return np.repeat(batch.adapters, np.diff(batch.cu_seqlens))


def side_by_side(batch: Batch, compute: Callable[[Batch], Tensor]) -> Tensor:
    """The rows of a batch [T, D], computed in an order in which each adapter's sequences are next to each other.

    A sequence that shares its beginning with the one before has the same adapter, so it stays behind that one.
    """
    adapters = batch.adapters
    if adapters is None or (adapters[1:] >= adapters[:-1]).all():
        return compute(batch)
    seqlens = np.diff(batch.cu_seqlens)
    order, tokens = (np.argsort(each, kind="stable") for each in (adapters, np.repeat(adapters, seqlens)))
    rows = compute(_reordered(batch, order, tokens, seqlens))
    found = torch.empty_like(rows)
    found[torch.from_numpy(tokens).to(rows.device)] = rows
    return found


def _reordered(batch: Batch, order: NDArray[np.int64], tokens: NDArray[np.int64], seqlens: NDArray[np.int32]) -> Batch:
    return dataclasses.replace(
        batch,
        token_ids=batch.token_ids[tokens],
        cu_seqlens=np.cumsum([0, *seqlens[order]], dtype=np.int32),
        **{
            part.field: values[order if part in OF_SEQUENCES else tokens]
            for part in Part
            if (values := getattr(batch, part.field)) is not None
        },
    )


@dataclass(frozen=True, slots=True)
class _Change:
    """What an adapter changes in one layer; tensors are of the model's type, where it is."""

    a: Tensor | None  # Aᵀ [in, R]; None where only the bias changes
    b: Tensor | None  # Bᵀ [R, out]
    scale: float
    factor: Tensor | None  # [out], of all but the bias: DoRA's
    shift: Tensor | None  # [out], added at the end

    def __deepcopy__(self, _: object) -> Self:
        return self  # copies of a model share its weights

    def __call__(self, found: Tensor, rows: Tensor) -> None:
        """Change what the layer gave [N, out] for rows [N, in]."""
        if self.a is not None and self.b is not None:
            found.addmm_(rows @ self.a, self.b, alpha=self.scale)
        if self.factor is not None:
            found.mul_(self.factor)
        if self.shift is not None:
            found.add_(self.shift)


@dataclass(frozen=True, slots=True)
class WeightDescription:
    """All of a weight but its numbers. No tensor on the meta device, with which torch computes arbitrary ones."""

    dtype: torch.dtype
    device: torch.device
    shape: torch.Size


class AdaptedLayer(nn.Module):
    """A linear layer with adapters, in its place."""

    def __init__(self, plain: nn.Module, changes: Sequence[_Change | None]) -> None:
        """changes: by the adapter's number; None = none."""
        super().__init__()
        self.plain = plain
        self._changes = tuple(changes)

    @property
    def weight(self) -> "WeightDescription":
        """What some classes ask for. It has no numbers: a product with them would pass the adapters over."""
        weight = _weight(self.plain)
        return WeightDescription(weight.dtype, weight.device, weight.shape)

    def forward(self, rows: Tensor) -> Tensor:
        """Compute as the plain layer does: [..., in] to [..., out]."""
        found: Tensor = self.plain(rows)
        runs = _RUNS.get()
        if runs:
            self._change(runs, found.view(-1, found.shape[-1]), rows.reshape(-1, rows.shape[-1]))
        return found

    def _change(self, runs: tuple[Run, ...], found: Tensor, rows: Tensor) -> None:
        if len(runs) > 1 and len(rows) != runs[-1].end:
            raise ValueError(f"a layer with adapters is given {len(rows)} rows for {runs[-1].end} tokens")
        for run in runs:
            change = self._changes[run.adapter]
            if change is not None:
                is_whole = len(runs) == 1
                change(*((found, rows) if is_whole else (found[run.begin : run.end], rows[run.begin : run.end])))


def put_adapters(whole: PreTrainedModel, folder: ModelFolder) -> None:
    """Put an AdaptedLayer in the place of each layer that one of folder.loras changes.

    whole: see `loading.load_model`; its layers must be plain, on their device. Raises ModelError.
    """
    if not folder.loras:
        return
    if folder.adapters or folder.query_table is not None:
        kind = "adapters for tasks" if folder.adapters else "a table in which queries are looked up"
        raise ModelError(f"the model has {kind}, beside which no other adapters are computed: serve it without --lora")
    layers = _Layers(whole, reads_pooler=any(isinstance(head, SequenceScores) for head in folder.heads))
    by_layer: dict[str, list[_Change | None]] = defaultdict(lambda: [None] * (1 + len(folder.loras)))
    for number, adapter in enumerate(folder.loras, start=1):
        for name, change in layers.changes_of(adapter):
            by_layer[name][number] = change
    for name, changes in by_layer.items():
        layers.put(name, AdaptedLayer(layers.plain[name], changes))


def note_of(loras: Sequence[Adapter]) -> str:
    """A line for /info; "" where there are none."""
    if not loras:
        return ""
    ranks = [layer.rank for adapter in loras for layer in adapter.layers.values()]
    return f"adapters computed beside the model: {len(loras)}, of ranks {min(ranks)} to {max(ranks)}"


class _Layers:
    """The layers of a model that adapters can change, by their names in its bare transformer."""

    def __init__(self, whole: PreTrainedModel, *, reads_pooler: bool) -> None:
        """reads_pooler: whether scores are made of the pooler's rows."""
        assert isinstance(whole.base_model, PreTrainedModel)
        self._base, self._prefix = whole.base_model, whole.base_model_prefix
        self._reads_pooler = reads_pooler
        self.plain = {
            name: module
            for name, module in self._base.named_modules(remove_duplicate=False)
            if isinstance(module, nn.Linear | Conv1D)
        }
        inside = {id(module) for module in self._base.modules()}
        self._of_head = {name for name, module in whole.named_modules() if id(module) not in inside}
        self._shapes = {name: _shape(each) for name, each in self.plain.items()}
        self._squares: dict[str, Tensor] = {}  # float64 [out]: the squares of a layer's weights, summed by rows

    def put(self, name: str, layer: nn.Module) -> None:
        parent, _, own = name.rpartition(".")
        setattr(self._base.get_submodule(parent), own, layer)

    def changes_of(self, adapter: Adapter) -> Iterator[tuple[str, _Change]]:
        """The names of layers, and their changes. Raises ModelError."""
        reader = _Reader(self._base.dtype, self._base.device)
        biases = self._biases(adapter)
        for name, own in adapter.layers.items():
            if name in self._of_head:
                raise _merge_it(str(own.a), adapter)
        layers: dict[str, AdapterLayer | None] = {**fitted(adapter, self._shapes)}
        for name, layer in {**dict.fromkeys(biases), **layers}.items():
            if name.partition(".")[0] != _POOLER:
                yield name, self._change(name, layer, biases.get(name), reader)
            elif self._reads_pooler:
                raise _merge_it(f"the change of {name!r} in {adapter.files[1]}", adapter)

    def _biases(self, adapter: Adapter) -> dict[str, StoredTensor]:
        """The biases that it brings, by the names of their layers. Raises ModelError for another tensor."""
        found = {}
        for given, tensor in adapter.whole.items():
            layer = given.removesuffix(_BIAS)
            name = layer if layer in self.plain else layer.removeprefix(f"{self._prefix}.")
            own = getattr(self.plain.get(name), "bias", None)
            if not given.endswith(_BIAS) or not isinstance(own, Tensor) or tuple(own.shape) != tensor.shape:
                raise _merge_it(str(tensor), adapter)
            found[name] = tensor
        return found

    def _change(self, name: str, layer: AdapterLayer | None, bias: StoredTensor | None, reader: "_Reader") -> _Change:
        own = self.plain[name].bias
        old = own.detach() if isinstance(own, Tensor) else None
        new = old if bias is None else reader.read(bias)
        if layer is None:
            return _Change(None, None, 0.0, None, _shift(old, new, None))
        a, b = reader.read(layer.a), reader.read(layer.b)
        factor = None
        if layer.magnitude is not None:
            factor = (reader.read(layer.magnitude) / self._lengths(name, a, layer.scale * b.double())).to(a.dtype)
        shift = _shift(old, new, factor)
        if layer.bias is not None:
            added = layer.scale * reader.read(layer.bias)
            shift = added if shift is None else shift + added
        return _Change(a.T, b.T, layer.scale, factor, shift)

    def _lengths(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """|W + B A| of each row, float64 [out]. b: float64. Made of W Aᵀ and A Aᵀ, for B A is as large as W."""
        weight = _weight(self.plain[name]).detach().float()
        if name not in self._squares:
            self._squares[name] = weight.square().sum(dim=1, dtype=torch.float64)
        mixed, a = (weight @ a.float().T).double(), a.double()
        return (self._squares[name] + ((2 * mixed + b @ (a @ a.T)) * b).sum(dim=1)).sqrt()


def _merge_it(what: str, adapter: Adapter) -> ModelError:
    return ModelError(
        f"{what} is of none of the linear layers below the model's head, and can't be computed beside it"
        f"{adapter.instead}"
    )


def _shift(old: Tensor | None, new: Tensor | None, factor: Tensor | None) -> Tensor | None:
    """What is added after the factor, so that the bias is the new one: the layer has added the old one before it."""
    if old is None or new is None or (old is new and factor is None):
        return None
    return new - (old if factor is None else factor * old)


def _weight(plain: nn.Module) -> Tensor:
    """[out, in]"""
    weight = plain.weight
    assert isinstance(weight, Tensor)
    return weight.T if isinstance(plain, Conv1D) else weight


def _shape(plain: nn.Module) -> tuple[int, int]:
    num_out, num_in = _weight(plain).shape
    return num_out, num_in


class _Reader:
    """Reads an adapter's tensors in the model's type, where the model is.

    A file is opened once, because its header takes long.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._opened: dict[Path, Any] = {}

    def read(self, stored: StoredTensor) -> Tensor:
        """Raises ModelError."""
        try:
            if stored.file not in self._opened:
                self._opened[stored.file] = safe_open(stored.file, framework="pt")
            found: Tensor = self._opened[stored.file].get_tensor(stored.name)
        except Exception as error:  # of the library's own, which name no file
            raise ModelError(f"{stored} can't be read: {one_line(error)}") from error
        # the sum, which is far quicker, is not finite either if a number is not
        if not math.isfinite(found.sum(dtype=torch.float32).item()) and not found.isfinite().all():
            raise ModelError(f"{stored} is not finite; fetch the adapter again")
        return found.to(self._device, self._dtype)

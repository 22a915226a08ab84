"""Opens a model's folder and fuses its weights: from its files to tensors in their dtypes on a device.

`open_model` finds the adapter of the architecture and checks that the weights fit the GPU; it reads none of them.
`FusedWeights` reads. It allocates each of our tensors once and copies its parts into place, so a second copy of the
model is never in memory. Norms, angles and relative biases are float32; everything else has the compute dtype.

Imports transformers, so a start from the cache of quantized models does without this module.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PretrainedConfig

from engine.fused.adapters import ADAPTERS
from engine.fused.adapters.adapter import Adapter, Recipe, Recipes
from engine.fused.adapters.heads import adapt
from engine.fused.checkpoint import Checkpoint, DequantizedCheckpoint, SafetensorsCheckpoint
from engine.fused.model.forwards import Weights
from engine.fused.model.linear import Linear, PlainLinear
from engine.fused.model.ops import MAX_HEAD_DIM, MAX_WIDTH
from engine.fused.model.spec import Spec, shape_of
from engine.fused.offer import FusedConfig, NotForFused
from engine.model import quantization
from engine.model.tasks import TransformersHead
from engine.model.weights import WeightSizes, check_read, weights_of
from engine.transformers.configuration import read_config
from engine.types import DeviceTrouble, ModelError

_RESERVE = 0.75e9  # bytes: kernels, workspaces of libraries, recorded graphs, rows on their way out
_NUM_WORKING_SETS = 2  # one of what is computed call by call, one that the graphs share
_LINEARS = frozenset(("qkv", "o", "gate_up", "down", "projection", "dense"))
_PLAIN = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))


class FusedWeights:
    """One model's weights: read whole or, as often as wanted, layer by layer."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        adapter: Adapter,
        config: PretrainedConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        num_positions: int,  # rows of tables of angles
        head: TransformersHead | None = None,
    ) -> None:
        """Raises ModelError where the adapter or that of the head does, and where tensors are missing."""
        config = config.get_text_config()  # itself, where the model has no other parts
        self.spec = adapter.spec(config)
        self._checkpoint = checkpoint
        self._derive = adapter.derive
        self._config = config
        self._dtype = dtype
        self._device = device
        self._num_positions = num_positions
        self._prefix, self._recipes = _choose(adapter, self.spec, checkpoint.names)
        self._twins: frozenset[str] = frozenset()
        self._names_of_head: set[str] = set()  # in any layout of it
        if head is not None:
            self._add_head(head, words=adapter.layouts[0](self.spec)["words"])

    def _add_head(self, head: TransformersHead, *, words: Recipe) -> None:
        adapted = adapt(head, self._config, words)
        layouts = [_prefixed(layout, self._prefix) for layout in adapted.layouts]
        # A head is read first: of a large matrix it may keep a few rows, and there is room for the rest as yet.
        self._recipes = _first_complete(layouts, self._checkpoint.names) | self._recipes
        self._twins = adapted.twins
        self._names_of_head = {name for layout in layouts for name in _parts_of(layout)}
        self.spec = dataclasses.replace(
            self.spec, head=adapted.scores, vocabulary_activation=adapted.vocabulary_activation
        )

    @property
    def linear_names(self) -> tuple[str, ...]:
        """ "layers.0.qkv", …"""
        return tuple(_stem(name) for name in self._recipes if _is_of_linear(name) and name.endswith(".weight"))

    def check(self) -> None:
        """Raises ModelError where `weights` does, but for what numbers say, and where a weight of the layers is read by
        nothing. Reads no numbers."""
        read = _parts_of(self._recipes)
        unread = sorted(self._checkpoint.names - read.keys() - self._twins)
        places = {name.removeprefix(self._prefix): self._checkpoint.in_words(name) for name in unread}
        parts = {name.removeprefix(self._prefix).partition(".")[0] for name in (*read, *self._names_of_head)}
        check_read(places, parts, architecture=self.spec.architecture)
        for name in self._recipes:
            self._made(name, self._checkpoint.on_meta, torch.device("meta"))

    def linear(self, name: str) -> PlainLinear:
        """One linear layer, read anew. Raises ModelError where a tensor is not what the configuration says."""
        has_bias = f"{name}.bias" in self._recipes
        return PlainLinear(self._read(f"{name}.weight"), self._read(f"{name}.bias") if has_bias else None)

    def weights(self) -> Weights:
        """Everything, read anew. Raises ModelError as `linear` does."""
        by_recipe: dict[Recipe, Tensor] = {}  # what layers share in the checkpoint, they share here
        read: dict[str, Tensor] = {}
        for name, recipe in self._recipes.items():
            if recipe not in by_recipe:
                by_recipe[recipe] = self._read(name)
            read[name] = by_recipe[recipe]
        matrix = read.get("vocabulary.words.weight")
        if matrix is not None and torch.equal(matrix, read["words"]):  # files may hold twice what is one tensor
            read["vocabulary.words.weight"] = read["words"]
        linears: dict[str, Linear] = {
            name: PlainLinear(read[f"{name}.weight"], read.get(f"{name}.bias")) for name in self.linear_names
        }
        tensors = {name: tensor for name, tensor in read.items() if not _is_of_linear(name)}
        if self._derive is not None:
            tensors |= self._derive(self._config, tensors, self._num_positions)
        return Weights({name: tensor.to(self._device) for name, tensor in tensors.items()}, linears)

    def _read(self, name: str) -> Tensor:
        return self._made(name, self._checkpoint.read, self._device)

    def _made(self, name: str, read: Callable[[str], Tensor], device: torch.device) -> Tensor:
        recipe = self._recipes[name]
        parts = [part for theirs in recipe.parts for part in self._pieces(theirs, read(theirs), recipe)]
        shape = (sum(map(len, parts)), *parts[0].shape[1:])
        self._check_shapes(parts, shape_of(self.spec, name) or shape, recipe)
        is_float32 = "norm" in name or name.startswith("head.") or name == "relative_bias"
        dtype = torch.float32 if is_float32 else self._dtype
        tensor = torch.empty(shape, dtype=dtype, device=device)
        end = 0
        for part in parts:
            start, end = end, end + len(part)
            tensor[start:end].copy_(part)
        return tensor.add_(recipe.plus) if recipe.plus else tensor

    def _pieces(self, theirs: str, tensor: Tensor, recipe: Recipe) -> list[Tensor]:
        """One of the checkpoint's tensors, in pieces in the order that is wanted."""
        if tensor.dtype not in _PLAIN or not tensor.dim():
            raise ModelError(
                f"the tensor {self._checkpoint.in_words(theirs)} is stored as {tensor.dtype}; only plain weights are "
                "read; take the model's plain weights"
            )
        if recipe.rows is not None:
            if len(tensor) != self.spec.vocab_size or max(recipe.rows) >= len(tensor):
                raise NotForFused(
                    f"the tensor {self._checkpoint.in_words(theirs)} has {len(tensor)} rows; config.json asks for "
                    f"{self.spec.vocab_size}, and the answers are rows {', '.join(map(str, recipe.rows))}"
                )
            return [tensor[[row]] for row in recipe.rows]
        return list(tensor.chunk(2))[::-1] if recipe.swaps_halves else [tensor]

    def _check_shapes(self, parts: list[Tensor], shape: tuple[int, ...], recipe: Recipe) -> None:
        """Raises ModelError where they don't make up a tensor of this shape."""
        if sum(map(len, parts)) != shape[0] or any(part.shape[1:] != shape[1:] for part in parts):
            found = " and ".join(str(list(part.shape)) for part in parts)
            joined = "" if len(parts) == 1 else " and what is joined to it"
            which = f"{self._checkpoint.in_words(recipe.parts[0])}{joined}"
            raise NotForFused(f"the tensor {which} has the shape {found}; config.json asks for {list(shape)}")


def _choose(adapter: Adapter, spec: Spec, names: frozenset[str]) -> tuple[str, Recipes]:
    """The first layout whose names are all there, under the prefix that the checkpoint has, and that prefix."""
    layouts = [layout(spec) for layout in adapter.layouts]
    prefixes = (*adapter.prefixes, "")
    prefixed = {prefix: [_prefixed(recipes, prefix) for recipes in layouts] for prefix in prefixes}
    fitting = (prefix for prefix in prefixes if any(names.issuperset(one["words"].parts) for one in prefixed[prefix]))
    prefix = next(fitting, prefixes[-1])
    candidates = prefixed[prefix]
    chosen = min(candidates, key=lambda recipes: len(_missing(recipes, names)))
    # A layout with biases that lacks one of them must not pass for the one without.
    richer = candidates[: candidates.index(chosen)]
    unread = [one for one in richer if not names.isdisjoint(_parts_of(one).keys() - _parts_of(chosen).keys())]
    lacking = [missing for recipes in (chosen, *unread) if (missing := _missing(recipes, names))]
    if lacking:
        raise NotForFused(f"the weights have no tensor {min(lacking, key=len)[0]!r}, which config.json asks for")
    return prefix, chosen


def _first_complete(layouts: list[Recipes], names: frozenset[str]) -> Recipes:
    """The first layout whose names are all there. Raises NotForFused with what the nearest one lacks."""
    chosen = min(layouts, key=lambda recipes: len(_missing(recipes, names)))
    if missing := _missing(chosen, names):
        raise NotForFused(f"the weights have no tensor {missing[0]!r}, which the model's head needs")
    return chosen


def _missing(recipes: Recipes, names: frozenset[str]) -> list[str]:
    return [name for name in _parts_of(recipes) if name not in names]


def _parts_of(recipes: Recipes) -> dict[str, None]:
    """The parts in order, each once."""
    return dict.fromkeys(part for recipe in recipes.values() for part in recipe.parts)


def _prefixed(recipes: Recipes, prefix: str) -> Recipes:
    return {
        name: recipe
        if recipe.is_beside
        else dataclasses.replace(recipe, parts=tuple(prefix + part for part in recipe.parts))
        for name, recipe in recipes.items()
    }


def _is_of_linear(name: str) -> bool:
    return _stem(name).rpartition(".")[2] in _LINEARS


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def open_model(chosen: FusedConfig) -> tuple[FusedWeights, tuple[str, ...]]:
    """The opened files that weights are read from, and notes on them. Raises ModelError where the engine doesn't know
    the architecture, or the weights won't fit."""
    folder = chosen.folder
    adapter = ADAPTERS.get(folder.architecture)
    if adapter is None:
        raise ModelError(
            f"the fused engine does not know the architecture {folder.architecture!r}; --engine transformers may"
        )
    config = read_config(folder)
    stored = quantization.check(folder.weights_folder, reads_fp8=True)
    checkpoint: Checkpoint = SafetensorsCheckpoint(folder.weights_folder, chosen.device)
    if stored is not None:
        checkpoint = DequantizedCheckpoint(checkpoint, stored)
    source = FusedWeights(
        checkpoint,
        adapter,
        config,
        dtype=chosen.dtype,
        device=chosen.device,
        num_positions=folder.max_seqlen,
        head=next((head for head in folder.heads if isinstance(head, TransformersHead)), None),
    )
    source.check()
    if chosen.capability is not None:
        _check_sizes(source.spec)
        _check_memory(source, chosen)
    return source, () if stored is None else (stored.note,)


def _check_sizes(spec: Spec) -> None:
    for name, size, most in (
        ("heads", spec.head_dim, MAX_HEAD_DIM),
        ("rows", max(spec.hidden_size, spec.embedding_size or 0), MAX_WIDTH),
    ):
        if size > most:
            raise ModelError(
                f"the model has {name} of {size} numbers, and the fused engine's kernels take {most}; "
                f"--engine transformers may serve it"
            )


def _check_memory(source: FusedWeights, chosen: FusedConfig) -> None:
    free, total = torch.cuda.mem_get_info(chosen.device)
    check_memory(
        source.spec,
        weights_of(chosen.folder.weights_folder),
        itemsize=chosen.dtype.itemsize,
        max_seqlen=chosen.folder.max_seqlen,
        memory=Memory(free, total, str(chosen.device), chosen.memory_share),
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one GPU."""

    free: int  # bytes
    total: int
    device: str  # "cuda:0", …
    share: float = 1.0  # of the total: what this process may take

    @property
    def available(self) -> int:
        """Bytes."""
        return min(self.free, int(self.share * self.total))

    def __str__(self) -> str:
        words = f"{self.device} has {self.free / 1e9:.1f} GB free of {self.total / 1e9:.1f}"
        return f"{words}, and the engine's share is {self.share:.3g} of it" if self.share < 1.0 else words


def check_memory(spec: Spec, weights: WeightSizes, *, itemsize: int, max_seqlen: int, memory: Memory) -> None:
    """Raises DeviceTrouble where the weights, and a batch of one sequence of the longest kind, will not fit.

    itemsize: bytes of a number in the compute dtype.
    """
    weight_bytes = itemsize * sum(weights.num_parameters.values()) + _RESERVE
    token_bytes = _NUM_WORKING_SETS * itemsize * numbers_per_token(spec)
    needed = weight_bytes + token_bytes * max_seqlen
    if needed <= memory.available:
        return
    fitting = int((memory.available - weight_bytes) // token_bytes)
    enlarge = "raise --gpu-memory-share, " if memory.available < memory.free else ""
    if fitting < 1:
        raise DeviceTrouble(
            f"the model needs {needed / 1e9:.1f} GB of GPU memory, and {memory}: "
            f"{enlarge}free some of it, or serve the model on a larger GPU"
        )
    raise DeviceTrouble(
        f"with sequences of {max_seqlen} tokens the model needs {needed / 1e9:.1f} GB of GPU memory, and {memory}: "
        f"{enlarge}--max-input-length {fitting} fits"
    )


def numbers_per_token(spec: Spec) -> int:
    """Numbers of the compute dtype that a token takes at the point where a layer holds most."""
    attention = 2 * spec.q_size + 2 * spec.kv_size + spec.hidden_size
    mlp = (3 if spec.is_gated else 2) * spec.intermediate_size + spec.hidden_size
    return 2 * spec.hidden_size + max(attention, mlp)  # the sum so far and its norm are held beside either

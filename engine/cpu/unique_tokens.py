"""The form of a traced model in which tokens that sequences begin with alike are computed once. Imports torch.

The model runs on unique tokens in one row, as the transformers engine runs packed sequences; what its class does before
and after sees padded sequences as ever. Only attention needs each sequence whole: it gathers the queries, keys and
values of padded sequences, and takes one copy of what it gives. Padding is behind the sequences, so a token that sees
nothing after it sees none of it, and no mask is needed but that of positions.

Shapes: B sequences, S tokens of the longest, U unique tokens, N query heads, H key heads, D numbers a head or a row.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel

from engine.cpu.minibatch import ATTENTION_MASK, INPUT_IDS
from engine.cpu.shared_prefixes import PLACES, UNIQUE, unique_inputs
from engine.machine.failures import one_line
from engine.selftest.comparison import agreement, is_near
from engine.transformers.loading import takes
from engine.transformers.visibility import NUM_TOKENS, UnsupportedAttention, Visibility, visibilities

logger = logging.getLogger("embedline.engine")

# See engine.transformers.attention.PACKED for what the name must not contain. No mask function is registered for it.
_NAME = "embedline_unique"
# Arguments of layers that have no effect here, or say what `visibilities` knows better. Any other one is refused.
_HARMLESS = frozenset(("position_ids", "use_cache", "is_causal", "sliding_window"))


class _Row:
    """Where the unique tokens of a mini-batch stand."""

    def __init__(self, unique: Tensor, places: Tensor, seen: Mapping[nn.Module, Visibility]) -> None:
        """See engine.cpu.shared_prefixes.unique_inputs. seen: what each layer sees."""
        self.unique = unique[0]
        self._places = places
        self._seen = seen
        self._masks: dict[Visibility, Tensor] = {}  # made once for all layers

    def of(self, values: Tensor) -> Tensor:
        """Values [B, S] of the padded sequences: those of the unique tokens, [1, U]."""
        return values.reshape(-1)[self.unique][None]

    @property
    def positions(self) -> Tensor:
        """[1, U]"""
        return (self.unique % self._places.shape[1])[None]

    def whole(self, rows: Tensor) -> Tensor:
        """Rows [U, D] of the unique tokens: those of all sequences, [B, S, D]."""
        return rows[self._places]

    def heads(self, heads: Tensor, num_groups: int = 1) -> Tensor:
        """[B, H * num_groups, S, D] of heads [1, H, U, D]. Whole rows are gathered, which is copying in one piece."""
        num_heads, size = heads.shape[1], heads.shape[3]
        rows = self.whole(heads.transpose(1, 2).reshape(-1, num_heads * size))
        whole = rows.view(*self._places.shape, num_heads, size).transpose(1, 2)
        if num_groups == 1:
            return whole
        # in this form, and in no other that was tried, OpenVINO computes scores, softmax and products in one step
        repeated = whole[:, :, None].expand(-1, -1, num_groups, -1, -1)
        return repeated.reshape(whole.shape[0], num_heads * num_groups, -1, size)

    def mask(self, layer: nn.Module) -> Tensor:
        """What tokens see, bool [1, 1, S, S]. Raises UnsupportedAttention."""
        seen = self._seen.get(layer)
        if seen is None:
            raise UnsupportedAttention("a layer of which it is not known what it sees")
        if seen not in self._masks:
            position = torch.arange(self._places.shape[1], device=self._places.device)
            self._masks[seen] = seen.visible(position[:, None], position)[None, None]
        return self._masks[seen]


def _attention(
    module: nn.Module,
    query: Tensor,  # [1, N, U, D]
    key: Tensor,  # [1, H, U, D]
    value: Tensor,  # [1, H, U, D]
    attention_mask: Tensor | None,
    *,
    row: _Row | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Rows [1, U, N, D]. Raises UnsupportedAttention."""
    unknown = sorted(name for name, value in others.items() if value is not None and name not in _HARMLESS)
    if unknown or attention_mask is not None or dropout or row is None:
        raise UnsupportedAttention(f"attention with {', '.join(unknown) or 'a mask, dropout or no row'}")
    num_groups = query.shape[1] // key.shape[1]
    rows = functional.scaled_dot_product_attention(
        row.heads(query),
        row.heads(key, num_groups),
        row.heads(value, num_groups),
        row.mask(module),
        scale=scaling,
    )
    flat = rows.transpose(1, 2).reshape(-1, query.shape[1] * value.shape[3])  # [B * S, N * D]
    return flat[row.unique].view(1, -1, query.shape[1], value.shape[3]), None


class _OnUniqueTokens:
    """Makes a model compute unique tokens, until `end`."""

    def __init__(self, whole: PreTrainedModel) -> None:
        """Raises UnsupportedAttention, and any other error, where the model can't."""
        self._base = cast("PreTrainedModel", whole.base_model)
        if not takes(self._base, "position_ids"):
            raise UnsupportedAttention("a model that numbers positions itself")
        self._seen = visibilities(self._base, self._run_one)
        if not all(seen.is_causal for seen in self._seen.values()):
            raise UnsupportedAttention("tokens that see what follows them")
        self._whole, self._own = whole, whole.config._attn_implementation
        self._row: _Row | None = None
        AttentionInterface.register(_NAME, _attention)
        whole.set_attn_implementation(_NAME)
        self._handles = (
            self._base.register_forward_pre_hook(self._before, with_kwargs=True),
            self._base.register_forward_hook(self._after),
        )

    def end(self) -> None:
        """Put the model back."""
        for handle in self._handles:
            handle.remove()
        self._whole.set_attn_implementation(self._own)

    def begin(self, unique: Tensor, places: Tensor) -> None:
        """The model is called next with padded sequences, of which it computes these tokens."""
        self._row = _Row(unique, places, self._seen)

    def _run_one(self) -> None:
        row = torch.arange(NUM_TOKENS)[None]
        self._base(input_ids=torch.ones_like(row), position_ids=row, use_cache=False)

    def _before(self, _: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Replace values of padded sequences by those of unique tokens."""
        row = self._row
        assert row is not None
        given = dict(zip(signature(self._base.forward).parameters, positional, strict=False)) | named
        found = {name: row.of(value) if isinstance(value, Tensor) else value for name, value in given.items()}
        return (), {**found, ATTENTION_MASK: None, "position_ids": row.positions, "row": row}

    def _after(self, _: nn.Module, __: Any, output: Any) -> Any:
        """Give the rows of padded sequences."""
        assert self._row is not None
        output.last_hidden_state = self._row.whole(output.last_hidden_state[0])
        return output


class PaddedGraph(Protocol):
    """See engine.cpu.tracing.Graph."""

    model: PreTrainedModel
    pad_id: int

    def example(self) -> dict[str, Tensor]: ...
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        adapters: Tensor | None = None,
    ) -> Tensor: ...
    def __call__(self, **inputs: Tensor) -> Any: ...


class UniqueGraph(nn.Module):
    """Gives what a graph gives."""

    def __init__(self, graph: PaddedGraph, computes: _OnUniqueTokens) -> None:
        super().__init__()
        self.model = graph.model  # the only module: OpenVINO finds no weights of a graph within a graph
        self._graph = (graph,)
        self._computes = computes

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        adapters: Tensor | None = None,
        unique: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """The rows of a padded mini-batch, int64 [B, S]. See engine.cpu.shared_prefixes.unique_inputs for the last."""
        assert unique is not None
        assert places is not None
        self._computes.begin(unique, places)
        (graph,) = self._graph
        return graph.forward(input_ids, attention_mask, token_type_ids, adapters)

    def example(self) -> dict[str, Tensor]:
        """Inputs for tracing, by name."""
        return _example(self._graph[0])


@contextlib.contextmanager
def on_unique_tokens(graph: PaddedGraph) -> Iterator[UniqueGraph | None]:
    """The graph in this form while the context lasts; None where the model can't have it, or gives other rows in it.

    The rows of a mini-batch decide, of which two sequences begin as the one before. They differ where a token's row
    depends on what follows it, and where layers other than attention mix the tokens of the row.
    """
    inputs = _example(graph)
    computes = None
    try:
        expected = _rows(graph, {name: inputs[name] for name in inputs if name not in (UNIQUE, PLACES)})
        computes = _OnUniqueTokens(graph.model)
        unique = UniqueGraph(graph, computes)
        is_same = is_near(agreement(_rows(unique, inputs), expected, dtype="float32"), dtype="float32")
    except Exception as error:  # models raise anything on what they do not support
        logger.info("what texts begin with alike is computed for each of them: %s", one_line(error))
        is_same = False
    try:
        yield unique if is_same else None
    finally:
        if computes is not None:
            computes.end()


_SEQLENS, _SHARED = (13, 11, 5, 12), (0, 7, 0, 3)  # of the mini-batch that is tried


def _example(graph: PaddedGraph) -> dict[str, Tensor]:
    """The inputs of a mini-batch, by name."""
    is_token = np.arange(max(_SEQLENS)) < np.array(_SEQLENS)[:, None]
    vocab_size = graph.model.config.get_text_config().vocab_size
    ids = np.random.default_rng(seed=0).integers(min(4, vocab_size - 1), vocab_size, is_token.shape)
    for number, shared in enumerate(_SHARED):
        ids[number, :shared] = ids[number - 1, :shared]
    ids[~is_token] = graph.pad_id  # some classes look for it
    of_graph = {name: torch.zeros(is_token.shape, dtype=torch.int64) for name in graph.example()}
    found = {INPUT_IDS: ids, ATTENTION_MASK: is_token.astype(np.int64), **unique_inputs(is_token, np.array(_SHARED))}
    return {**of_graph, **{name: torch.from_numpy(value) for name, value in found.items()}}


def _rows(graph: Callable[..., Tensor], inputs: Mapping[str, Tensor]) -> NDArray[np.float32]:
    """[N, D] of all tokens, or of all sequences."""
    rows = graph(**inputs).numpy()
    return rows[inputs[ATTENTION_MASK].numpy() == 1] if rows.ndim == 3 else rows

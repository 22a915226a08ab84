"""Runs a batch through the model, packed or padded, and gives the rows of its tokens. Knows no pooling, no threads.

Packed: all sequences are in one row of T tokens, and our attention function keeps them apart. A filler sequence may
follow, because some layers are fast only for a few numbers of rows. Padded: sequences of similar length are side by
side, for architectures with their own attention; or each is run alone, where padding changes rows. The rows are the
same. Batches with hidden tokens are always padded: the mask that hides the padding hides these tokens, too.

Where sequences of a packed batch begin alike, the row may have the tokens of a common beginning once, if the self-test
has found that their rows are equal whatever follows. Padded, nothing is shared.

Shapes: T tokens of all sequences, U unique ones, B sequences in a batch, S tokens of the longest in a group, D numbers
a row.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.rows.shared_prefixes import UniqueTokens, unique_tokens
from engine.rows.with_numpy import position_ids
from engine.rows.with_torch import on_device
from engine.transformers.attention import UniqueRows
from engine.transformers.loading import takes, takes_token_types
from engine.transformers.lora import adapted, adapters_of_tokens, side_by_side
from engine.transformers.prepack import PrepackedLinear, is_prepacked, rows_with_code
from engine.transformers.visibility import NUM_TOKENS, Visibility, visibilities
from engine.types import Batch, OutputKind, Rows
from wire.parts import EXPANSION_TOKEN

# The most tokens of a padded group. On a CPU larger groups are no faster and have more padding.
_MAX_PADDED_TOKENS = {"cpu": 512, "cuda": 8192}
# The part of a batch's tokens that may be unique where some are not: short texts with one common token took 1 to 2 %
# longer with a prefix than without.
_MOST_UNIQUE = 15 / 16
_MAX_CHECKED_TOKENS = 16_384  # classes with more positions number them by angles, which end nowhere


# Runs a model: the last hidden states [T, D] in the order of batch.token_ids, on the model's device.
Forward = Callable[[Batch], Tensor]
Maker = Callable[[Tensor, Batch], Rows]  # makes an output's rows from the token rows of a Forward
Makers = Mapping[OutputKind, Maker]


class PackedForward:
    """Runs batches packed. The model must use the attention function `attention.PACKED`."""

    def __init__(self, model: PreTrainedModel, *, padding_idx: int | None) -> None:
        self.model = model
        self.shares_prefixes = False  # see Batch.shared; whoever knows that it may sets this
        self._device = model.device
        self._padding_idx = padding_idx
        self._parts_of = _parts_for(model)
        self._is_prepacked = is_prepacked(model)

    @torch.inference_mode()
    def __call__(self, batch: Batch) -> Tensor:
        """See Forward. The first call, which is the self-test's, may raise UnsupportedAttention."""
        return side_by_side(batch, lambda ordered: self._run(ordered, self._visibilities))

    @cached_property
    def _visibilities(self) -> Mapping[nn.Module, Visibility]:
        """The visibility in each layer. Not told earlier, because it needs a run of the model."""
        token_id = 1 if self._padding_idx == 0 else 0  # positions count each token but padding
        one = Batch("", OutputKind.TOKENS, np.full(NUM_TOKENS, token_id, np.int32), np.array([0, NUM_TOKENS], np.int32))
        self._check_row_length()
        return visibilities(self.model, lambda: self._run(one, {}))

    def _check_row_length(self) -> None:
        """Raises what the class raises for a row of more tokens than it has positions, as CLIP's does, although no
        sequence of the row has more. The row goes no farther than the tables of tokens and positions, so it costs
        little.
        """
        num_tokens = 1 + (getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or 0)
        if num_tokens > _MAX_CHECKED_TOKENS:
            return
        singly = np.arange(num_tokens + 1, dtype=np.int32)
        beyond = [module for module in self.model.modules() if _follows_tables(module)]
        handles = [module.register_forward_pre_hook(_stop) for module in beyond]
        try:
            with contextlib.suppress(_Stopped):
                self._run(Batch("", OutputKind.TOKENS, np.ones(num_tokens, np.int32), singly), {})
        finally:
            for handle in handles:
                handle.remove()

    def _run(self, batch: Batch, seen: Mapping[nn.Module, Visibility]) -> Tensor:
        unique = self._unique(batch)
        num_rows = batch.num_tokens if unique is None else len(unique.first)
        num_filler = rows_with_code(num_rows) - num_rows if self._is_prepacked else 0
        cu_seqlens = batch.cu_seqlens
        if num_filler:
            cu_seqlens = np.append(cu_seqlens, cu_seqlens[-1] + np.int32(num_filler))
        max_seqlen = max(batch.max_seqlen, num_filler)
        of_tokens = {
            "input_ids": batch.token_ids,
            "position_ids": position_ids(batch, self._padding_idx),
            **self._parts_of(batch),
        }
        adapters = adapters_of_tokens(batch)
        if unique is not None:
            of_tokens = {name: values[unique.first] for name, values in of_tokens.items()}
            adapters = adapters if adapters is None else adapters[unique.first]
        rows_of = None if unique is None else _rows_of(unique, cu_seqlens, self._device)
        with adapted(adapters if adapters is None else np.pad(adapters, (0, num_filler), "edge")):
            output = self.model(
                use_cache=False,
                cu_seq_lens_q=on_device(cu_seqlens, self._device, dtype=torch.int32),
                cu_seq_lens_k=torch.tensor(cu_seqlens),  # see `attention.packed_attention`
                max_length_q=max_seqlen,
                max_length_k=max_seqlen,
                visibilities=seen,
                **({} if rows_of is None else {"unique": rows_of}),
                **{name: self._row(values, num_filler) for name, values in of_tokens.items()},
            )
        rows: Tensor = output.last_hidden_state[0]
        return rows[: batch.num_tokens] if rows_of is None else rows[rows_of.places[: batch.num_tokens]]

    def _unique(self, batch: Batch) -> UniqueTokens | None:
        """None where all tokens are computed."""
        unique = unique_tokens(batch) if self.shares_prefixes else None
        return unique if unique is not None and len(unique.first) <= _MOST_UNIQUE * batch.num_tokens else None

    def _row(self, values: NDArray[Any], num_filler: int) -> Tensor:
        filled = np.append(values, np.zeros(num_filler, values.dtype)) if num_filler else values
        return on_device(filled, self._device)[None]


def _rows_of(unique: UniqueTokens, cu_seqlens: NDArray[np.int32], device: torch.device) -> UniqueRows:
    """cu_seqlens: with the filler, each of whose tokens is a row, too."""
    num_tokens, num_rows = len(unique.places), len(unique.first)
    filler = np.arange(cu_seqlens[-1] - num_tokens)
    first = np.append(unique.first, num_tokens + filler)
    return UniqueRows(
        on_device(first, device),
        on_device(np.append(unique.places, num_rows + filler), device),
        np.searchsorted(first, cu_seqlens).tolist(),
    )


class _Stopped(Exception):
    """A row has passed the tables."""


def _stop(*_: Any) -> None:
    raise _Stopped


def _follows_tables(module: nn.Module) -> bool:
    has_matrix = isinstance(module, PrepackedLinear) or any(tensor.dim() > 1 for tensor in module.parameters(False))
    return has_matrix and not isinstance(module, nn.Embedding) and not any(True for _ in module.children())


class PaddedForward:
    """Runs batches padded, or one sequence at a time. The model itself numbers positions and masks the padding."""

    def __init__(self, model: PreTrainedModel, *, each_alone: bool = False) -> None:
        self._model = model
        self._each_alone = each_alone
        self._device = model.device
        self._pad_id = getattr(model.config, "pad_token_id", None) or 0
        self._parts_of = _parts_for(model)
        self._fixed = {"use_cache": False} if takes(model, "use_cache") else {}
        self._takes_mask = takes(model, "attention_mask")

    @torch.inference_mode()
    def __call__(self, batch: Batch) -> Tensor:
        indices, rows = [], []
        max_tokens = _MAX_PADDED_TOKENS[self._device.type]
        # rows of hidden tokens can depend on the padding (DeBERTa's do), so batches with them have none
        is_equal = batch.marked(EXPANSION_TOKEN) is not None
        seqlens, adapters = np.diff(batch.cu_seqlens), batch.adapters
        groups = _groups_of_like_length(seqlens, max_tokens, adapters=adapters, is_equal=is_equal)
        for group in ([number] for number in range(batch.num_seqs)) if self._each_alone else groups:
            index, is_token = _index(batch.cu_seqlens, group)
            with adapted(None if adapters is None else adapters[group]):
                hidden = self._run(batch, index, is_token=is_token)
            rows.append(hidden[torch.from_numpy(is_token)])
            indices.append(index[is_token])
        gathered = torch.cat(rows)
        ordered = torch.empty_like(gathered)
        ordered[torch.from_numpy(np.concatenate(indices))] = gathered
        return ordered

    def _run(self, batch: Batch, index: NDArray[np.int64], *, is_token: NDArray[np.bool_]) -> Tensor:
        parts = self._parts_of(batch).items()
        is_hidden = batch.marked(EXPANSION_TOKEN)
        mask = is_token if is_hidden is None else is_token & ~is_hidden[index]
        is_needed = self._takes_mask or not mask.all()
        masks = {"attention_mask": on_device(mask, self._device)} if is_needed else {}
        output = self._model(
            input_ids=on_device(np.where(is_token, batch.token_ids[index], self._pad_id), self._device),
            **masks,
            **{name: on_device(values[index] * is_token, self._device) for name, values in parts},
            **self._fixed,
        )
        hidden: Tensor = output.last_hidden_state
        return hidden


class HidingForward:
    """Runs a batch padded if it has hidden tokens, packed otherwise."""

    def __init__(self, packed: Forward, padded: PaddedForward) -> None:
        self.packed = packed
        self.padded = padded

    def __call__(self, batch: Batch) -> Tensor:
        return (self.packed if batch.marked(EXPANSION_TOKEN) is None else self.padded)(batch)


def hiding(forward: Forward) -> Forward:
    """A forward that can hide tokens. A packed one can't.

    The padded model shares all weights with the packed one, but has its own modules, because a module finds its
    attention function in its configuration.
    """
    if not isinstance(forward, PackedForward):
        return forward
    shared = {id(tensor): tensor for module in forward.model.modules() for tensor in _tensors(module)}
    twin = copy.deepcopy(forward.model, shared)
    twin.set_attn_implementation("sdpa" if twin._supports_sdpa else "eager")
    return HidingForward(forward, PaddedForward(twin))


def _tensors(module: nn.Module) -> list[Tensor]:
    """The module's own tensors, including those that are neither parameters nor buffers."""
    held = (*module._parameters.values(), *module._buffers.values(), *vars(module).values())
    return [tensor for tensor in held if isinstance(tensor, Tensor)]


def _groups_of_like_length(
    seqlens: NDArray[np.int32],
    max_tokens: int,
    *,
    adapters: NDArray[np.int32] | None = None,
    is_equal: bool = False,
) -> Iterator[list[int]]:
    """Sequence numbers from the shortest up, in groups of at most max_tokens; is_equal: of one length only.

    A group has one adapter, because layers may be given other rows than its tokens: DeBERTa's distances.
    """
    owners = np.zeros_like(seqlens) if adapters is None else adapters
    group: list[int] = []
    for number in np.lexsort((seqlens, owners)).tolist():
        is_full = (len(group) + 1) * seqlens[number] > max_tokens
        is_other = group and (owners[number] != owners[group[0]] or (is_equal and seqlens[number] != seqlens[group[0]]))
        if group and (is_full or is_other):
            yield group
            group = []
        group.append(number)
    yield group


def _index(cu_seqlens: NDArray[np.int32], group: list[int]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The index of each token [B, S] of a padded group in the batch (int64), and whether it is a token."""
    starts, ends = cu_seqlens[:-1][group, None], cu_seqlens[1:][group, None]
    index = starts + np.arange((ends - starts).max())
    is_token = index < ends
    return np.where(is_token, index, 0), is_token


def _parts_for(model: PreTrainedModel) -> Callable[[Batch], dict[str, NDArray[np.int32]]]:
    """The parts of a batch that are inputs of the model, by its names for them; a number for each token [T]."""
    takes_types, takes_adapters = takes_token_types(model), takes(model, "adapters")

    def parts_of(batch: Batch) -> dict[str, NDArray[np.int32]]:
        zeros, parts = np.zeros_like(batch.token_ids), {}
        if takes_types:
            parts["token_type_ids"] = zeros if batch.token_type_ids is None else batch.token_type_ids
        if takes_adapters:
            seqlens = np.diff(batch.cu_seqlens)
            parts["adapters"] = zeros if batch.adapters is None else np.repeat(batch.adapters, seqlens)
        return parts

    return parts_of

"""A batch through the model, packed or padded, to the rows of its tokens. Knows nothing of pooling and threads.

Packed: all sequences in one row of T tokens, which our attention function keeps apart. A sequence of filler may follow
them, so that layers for which numbers of rows are dear meet few different ones. Padded: for architectures that
bring an attention of their own, sequences of like length side by side. The rows are the same.

Shapes: T tokens of all sequences, B sequences in a batch, S tokens of the longest in a group, D numbers a row.
"""

import inspect
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from engine.transformers.prepack import is_prepacked, rows_with_code
from engine.types import Batch

# On a CPU more tokens at once are no faster, and the padding stays small.
_MAX_PADDED_TOKENS = 512


class Forward(Protocol):
    """The way a model is run."""

    def __call__(self, batch: Batch, /) -> Tensor:
        """The last hidden states [T, D] in the order of batch.token_ids."""
        ...


class PackedForward:
    """The model must use the attention function `attention.PACKED`."""

    def __init__(self, model: PreTrainedModel, *, padding_idx: int | None) -> None:
        self._model = model
        self._padding_idx = padding_idx
        self._takes_types = _takes_types(model)
        self._is_prepacked = is_prepacked(model)

    @torch.inference_mode()
    def __call__(self, batch: Batch) -> Tensor:
        """See Forward."""
        num_filler = rows_with_code(batch.num_tokens) - batch.num_tokens if self._is_prepacked else 0
        cu_seqlens = torch.tensor(_with_sequence(batch.cu_seqlens, num_filler))
        types = {}
        if self._takes_types:
            types["token_type_ids"] = _tensor(_with_zeros(_token_type_ids(batch), num_filler))[None]
        output = self._model(
            input_ids=_tensor(_with_zeros(batch.token_ids, num_filler))[None],
            position_ids=_tensor(_with_zeros(position_ids(batch, self._padding_idx), num_filler))[None],
            use_cache=False,
            cu_seq_lens_q=cu_seqlens,
            cu_seq_lens_k=cu_seqlens,
            max_length_q=batch.max_seqlen,
            max_length_k=batch.max_seqlen,
            **types,
        )
        rows: Tensor = output.last_hidden_state[0, : batch.num_tokens]
        return rows


class PaddedForward:
    """The model numbers positions and masks the padding itself, as it does for everyone."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._pad_id = getattr(model.config, "pad_token_id", None) or 0
        self._takes_types = _takes_types(model)
        self._fixed = {"use_cache": False} if _takes(model, "use_cache") else {}

    @torch.inference_mode()
    def __call__(self, batch: Batch) -> Tensor:
        """See Forward."""
        indices, rows = [], []
        for group in _groups_of_like_length(np.diff(batch.cu_seqlens)):
            index, is_token = _index(batch.cu_seqlens, group)
            hidden = self._run(batch, index, is_token=is_token)
            rows.append(hidden[torch.from_numpy(is_token)])
            indices.append(index[is_token])
        gathered = torch.cat(rows)
        ordered = torch.empty_like(gathered)
        ordered[torch.from_numpy(np.concatenate(indices))] = gathered
        return ordered

    def _run(self, batch: Batch, index: NDArray[np.int64], *, is_token: NDArray[np.bool_]) -> Tensor:
        types = {"token_type_ids": _tensor(_token_type_ids(batch)[index] * is_token)} if self._takes_types else {}
        output = self._model(
            input_ids=_tensor(np.where(is_token, batch.token_ids[index], self._pad_id)),
            attention_mask=_tensor(is_token),
            **types,
            **self._fixed,
        )
        hidden: Tensor = output.last_hidden_state
        return hidden


def position_ids(batch: Batch, padding_idx: int | None) -> NDArray[np.int64]:
    """Positions [T] that begin anew with each sequence.

    RoBERTa and its kin (padding_idx given) number from padding_idx + 1, and leave out tokens that are padding_idx
    themselves, as a text can make one by spelling it out.
    """
    starts = np.repeat(batch.cu_seqlens[:-1], np.diff(batch.cu_seqlens))
    if padding_idx is None:
        return np.arange(batch.num_tokens) - starts
    is_token = batch.token_ids != padding_idx
    num_before = np.concatenate(([0], np.cumsum(is_token)))
    return np.where(is_token, num_before[1:] - num_before[starts], 0) + padding_idx


def _groups_of_like_length(seqlens: NDArray[np.int32]) -> Iterator[list[int]]:
    """Sequence numbers from the shortest up, as many at once as _MAX_PADDED_TOKENS allows."""
    group: list[int] = []
    for number in np.argsort(seqlens, kind="stable").tolist():
        if group and (len(group) + 1) * seqlens[number] > _MAX_PADDED_TOKENS:
            yield group
            group = []
        group.append(number)
    yield group


def _index(cu_seqlens: NDArray[np.int32], group: list[int]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For each place [B, S] of a padded group where in the batch its token is (int64), and whether it has one."""
    starts, ends = cu_seqlens[:-1][group, None], cu_seqlens[1:][group, None]
    index = starts + np.arange((ends - starts).max())
    is_token = index < ends
    return np.where(is_token, index, 0), is_token


def _with_sequence(cu_seqlens: NDArray[np.int32], num_tokens: int) -> NDArray[np.int32]:
    """Bounds with one more sequence of so many tokens, where there are any."""
    return np.append(cu_seqlens, cu_seqlens[-1] + np.int32(num_tokens)) if num_tokens else cu_seqlens


def _with_zeros(values: NDArray[Any], num_zeros: int) -> NDArray[Any]:
    return np.append(values, np.zeros(num_zeros, values.dtype)) if num_zeros else values


def _token_type_ids(batch: Batch) -> NDArray[np.int32]:
    return np.zeros_like(batch.token_ids) if batch.token_type_ids is None else batch.token_type_ids


def _takes_types(model: PreTrainedModel) -> bool:
    """A model without a table for them, such as GPT-2, would take zeros for tokens and add the row of token 0."""
    return _takes(model, "token_type_ids") and bool(getattr(model.config, "type_vocab_size", 0))


def _takes(model: PreTrainedModel, argument: str) -> bool:
    return argument in inspect.signature(model.forward).parameters


def _tensor(values: NDArray[Any]) -> Tensor:
    """int64, copied: a batch's arrays are views of what was received, and may be read-only."""
    return torch.tensor(values, dtype=torch.int64)

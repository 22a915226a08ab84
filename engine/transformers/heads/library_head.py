"""Runs the head of a library's class on token rows that were computed elsewhere.

A copy of the model runs its own forward, with a stand-in for the bare transformer that returns the given rows. So
poolers, dense layers, activations and caps on scores are the class's own.

Shapes: B sequences, S rows of each, D numbers a row, V entries of a vocabulary, L scores.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from engine.types import ModelError

_NO_ID = -1  # no token has it


class LibraryHead:
    """Computes in float32 by default, whatever the model's dtype, since most heads are small.

    Safe to call from several threads. Of the original model it keeps only tensors of the head, which are shared if
    they have the dtype already.
    """

    def __init__(
        self, whole: PreTrainedModel, *, entries: Sequence[int] | None = None, dtype: torch.dtype | None = torch.float32
    ) -> None:
        """entries: the vocabulary ids to score; L is then their number. None = all. dtype: None = the model's.

        Raises ModelError if the class has no bare transformer inside, or no output embedding for the entries.
        """
        if whole.base_model is whole:
            raise ModelError(f"the library's {type(whole).__name__} has no bare transformer in it")
        replaced: dict[int, Any] = _tensors_in(whole, dtype) | {id(whole.base_model): _StandIn(whole.base_model)}
        if entries is not None:
            output = whole.get_output_embeddings()  # type: ignore[no-untyped-call]
            if not isinstance(output, nn.Linear):
                raise ModelError(f"the library's {type(whole).__name__} has no output embedding to take rows from")
            replaced[id(output)] = _some_rows(output, entries)
        self._model: PreTrainedModel = copy.deepcopy(whole, replaced)
        if dtype is not None:  # shared tensors have the dtype already, so the cast does not copy them
            self._model.to(dtype)  # type: ignore[arg-type]
        self._dtype = dtype or whole.dtype
        config = self._model.config.get_text_config()
        self.pad_id: int | None = config.pad_token_id
        if config.pad_token_id is None:  # without it some classes refuse more than one sequence
            config.pad_token_id = _NO_ID
        self.name = type(whole).__name__

    @torch.inference_mode()
    def __call__(self, rows: Tensor, token_ids: Tensor | None = None) -> Tensor:
        """Raw scores [B, L] or [B, S, L] of rows [B, S, D] and their int64 ids [B, S].

        A class that scores sequences needs the ids, because it looks for padding in them.
        """
        scores: Tensor = self._model(input_ids=token_ids, inputs_embeds=rows.to(self._dtype)).logits
        return scores


class _StandIn(nn.Module):
    """Replaces the bare transformer."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.pooler = copy.deepcopy(getattr(base, "pooler", None))
        self.pooler_activation = copy.deepcopy(getattr(base, "pooler_activation", None))

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """inputs_embeds: rows [B, S, D], which become the last hidden states."""
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=inputs_embeds,
            pooler_output=self._pooled(inputs_embeds),
        )

    def _pooled(self, rows: Tensor) -> Tensor | None:
        if self.pooler is None:
            return None
        pooled: Tensor
        if self.pooler_activation is None:
            pooled = self.pooler(rows)
        else:  # ALBERT's pooler is a single layer
            pooled = self.pooler_activation(self.pooler(rows[:, 0]))
        return pooled


def _tensors_in(whole: PreTrainedModel, dtype: torch.dtype | None) -> dict[int, Tensor]:
    """The tensors of this dtype (None = all) by `id`, for a copy to share."""
    tensors = (*whole.parameters(), *whole.buffers())
    return {id(tensor): tensor for tensor in tensors if dtype in (None, tensor.dtype)}


def _some_rows(output: nn.Linear, entries: Sequence[int]) -> nn.Linear:
    """A layer that scores only these vocabulary ids."""
    index = torch.tensor(entries, device=output.weight.device)
    some = nn.Linear(output.in_features, len(entries), bias=output.bias is not None, device="meta")
    some.weight = nn.Parameter(output.weight.detach()[index], requires_grad=False)
    if output.bias is not None:
        some.bias = nn.Parameter(output.bias.detach()[index], requires_grad=False)
    return some

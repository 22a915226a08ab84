"""What a class of the library does after its bare transformer, run on token rows that were computed elsewhere.

Poolers, dense layers, activations, caps on scores and what else classes have come from the class itself: a copy of the
model runs its own forward, in which the bare transformer is a stand-in that returns the rows it is given.

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

_NO_ID = -1  # of any token


class LibraryHead:
    """Computes in float32 whatever the model's type, where nobody says otherwise: mostly it costs next to nothing.

    Safe to call from several threads. Refers to nothing of the model that it was made of but to tensors of the head,
    which it shares where they are in the type already.
    """

    def __init__(
        self, whole: PreTrainedModel, *, entries: Sequence[int] | None = None, dtype: torch.dtype | None = torch.float32
    ) -> None:
        """entries: of a model that scores a vocabulary, those that are wanted; L is then their number. dtype: None =
        as the model has it.

        Raises ModelError where the class has no part that is the bare transformer, or no such entries.
        """
        if whole.base_model is whole:
            raise ModelError(f"the library's {type(whole).__name__} has no part that is the transformer alone")
        replaced: dict[int, Any] = _tensors_in(whole, dtype) | {id(whole.base_model): _StandIn(whole.base_model)}
        if entries is not None:
            output = whole.get_output_embeddings()  # type: ignore[no-untyped-call]
            if not isinstance(output, nn.Linear):
                raise ModelError(f"the library's {type(whole).__name__} has no output embedding to take rows from")
            replaced[id(output)] = _some_rows(output, entries)
        self._model: PreTrainedModel = copy.deepcopy(whole, replaced)
        if dtype is not None:  # a shared tensor is of the type already, so that the cast leaves it as it is
            self._model.to(dtype)  # type: ignore[arg-type]
        self._dtype = dtype or whole.dtype
        config = self._model.config.get_text_config()
        self.pad_id: int | None = config.pad_token_id
        if config.pad_token_id is None:  # some classes then refuse to compute more than one sequence
            config.pad_token_id = _NO_ID
        self.name = type(whole).__name__

    @torch.inference_mode()
    def __call__(self, rows: Tensor, token_ids: Tensor | None = None) -> Tensor:
        """Raw scores, [B, L] or [B, S, L] as the class gives them, of rows [B, S, D] and their int64 ids [B, S].

        Ids count where a class looks for padding, and where it scores sequences has to be given them.
        """
        scores: Tensor = self._model(input_ids=token_ids, inputs_embeds=rows.to(self._dtype)).logits
        return scores


class _StandIn(nn.Module):
    """In place of the bare transformer."""

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
        else:  # ALBERT's, which is a bare layer
            pooled = self.pooler_activation(self.pooler(rows[:, 0]))
        return pooled


def _tensors_in(whole: PreTrainedModel, dtype: torch.dtype | None) -> dict[int, Tensor]:
    """By their ids, those of this type, or all, for a copy to share."""
    tensors = (*whole.parameters(), *whole.buffers())
    return {id(tensor): tensor for tensor in tensors if dtype in (None, tensor.dtype)}


def _some_rows(output: nn.Linear, entries: Sequence[int]) -> nn.Linear:
    """A layer that gives these entries of the vocabulary alone."""
    index = torch.tensor(entries, device=output.weight.device)
    some = nn.Linear(output.in_features, len(entries), bias=output.bias is not None, device="meta")
    some.weight = nn.Parameter(output.weight.detach()[index], requires_grad=False)
    if output.bias is not None:
        some.bias = nn.Parameter(output.bias.detach()[index], requires_grad=False)
    return some

"""A number added to each attention score that depends on the head and the distance of the two tokens alone.

ALiBi's and T5's relative biases are of this kind. A model gives them as one table for all its layers: column M - 1 + d
is for a key that is d tokens after its query, for distances -(M - 1) to M - 1.

Shapes: N heads, M tokens of the longest sequence, S tokens of one (S <= M), B sequences side by side.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.masking_utils import create_bidirectional_mask


def of_reversed_keys(table: Tensor, seqlen: int) -> Tensor:
    """The biases [N, S, S] of queries (rows) and keys (columns), the keys from the last to the first.

    In this order column c of row r is for the distance S - 1 - c - r, so all of them are a view of a reversed row of
    the table: no memory is taken, however long the sequence is.
    """
    middle = table.shape[1] // 2
    near = table[:, middle - seqlen + 1 : middle + seqlen]
    return near.flip(1).unfold(1, seqlen, 1)


def for_attention(
    config: PreTrainedConfig,
    rows: Tensor,  # [B, M, …], or of all tokens in one row
    attention_mask: Tensor | None,  # of the model's forward
    biases: Callable[[Tensor], Tensor],  # [N, …] of distances int64 […]
    max_seqlen: int | None,  # the forward's max_length_q; None = padded
) -> dict[str, Any]:
    """The arguments attention_mask and distance_bias of attention, the same for all layers.

    Packed sequences have no mask. Others have the biases in it, minus infinity where a query does not see a key.
    """
    if max_seqlen is not None:
        distances = torch.arange(1 - max_seqlen, max_seqlen, device=rows.device)
        return {"attention_mask": None, "distance_bias": biases(distances).to(rows.dtype)}
    position = torch.arange(rows.shape[1], device=rows.device)
    bias = biases(position - position[:, None]).to(rows.dtype)[None]
    mask = create_bidirectional_mask(config=config, inputs_embeds=rows, attention_mask=attention_mask)
    assert mask is None or isinstance(mask, torch.Tensor), "another kind is for flex_attention alone"
    return {"attention_mask": bias if mask is None else bias.masked_fill(~mask, -torch.inf)}

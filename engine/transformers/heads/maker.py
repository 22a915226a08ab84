"""What a maker is: the one thing that an engine and what is made of token rows have to agree on."""

from collections.abc import Callable, Mapping

from torch import Tensor

from engine.types import Batch, OutputKind, Rows

Maker = Callable[[Tensor, Batch], Rows]  # of the last hidden states [T, D] in the order of batch.token_ids
Makers = Mapping[OutputKind, Maker]

"""A batch as the device sees it: views of one block of int32. Knows no model.

Shapes: T tokens and B sequences, both with room to spare: what lies behind the batch's own is padding. Padded token
ids and positions are 0, padded sequences are empty, padded tiles have no queries. No tile covers a padded token, and
nothing else mixes tokens, so their rows may hold anything.
"""

from dataclasses import dataclass

from torch import Tensor

TILE_FIELDS = 5


@dataclass(frozen=True, slots=True)
class Tiles:
    """Who attends to whom: each row is up to `block` queries in a row, all of one sequence.

    Its numbers: the first query's row in the tensor of queries, the number of queries, the first query's position in
    its sequence, the row of the sequence's first key, the number of its keys.
    """

    table: Tensor  # int32 [N, TILE_FIELDS]
    block: int  # queries a tile at most: 16, 32, 64 or 128


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything a forward needs to know of its batch; ints among it are the same for each batch of a shape."""

    token_ids: Tensor  # int32 [T]
    positions: Tensor  # int32 [T]: row of the tables of positions and angles
    token_type_ids: Tensor | None  # int32 [T]; None = all zero
    cu_seqlens: Tensor  # int32 [B + 1]
    pooled: Tensor  # int32 [B]: the token that stands for each sequence (pooling cls and last); 0 where padded
    tiles: Tiles  # queries are all tokens
    pooled_tiles: Tiles  # queries are the B pooled tokens
    max_seqlen: int  # no sequence is longer

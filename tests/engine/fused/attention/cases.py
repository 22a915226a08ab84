"""Queries, keys and values as views of packed rows, with the tiles of some lengths."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.fused.kernels.attention import Sizes
from engine.fused.model.ops import AttentionRule, Tiles
from engine.fused.packing import pooled_tile_table, tile_table

# By D: sizes that a GPU run tries, with keys and values read by tensor descriptors, and with more or fewer keys a step.
TRIED = {
    64: (Sizes(64, 8, 3, 128, by_boxes=True), Sizes(128, 8, 2), Sizes(128, 8, 3, by_boxes=True), Sizes(32, 8, 4, 80)),
    128: (Sizes(64, 8, 4, by_boxes=True), Sizes(128, 8, 2), Sizes(32, 8, 4, 128), Sizes(32, 8, 4, 128, by_boxes=True)),
    256: (Sizes(32, 8, 3, by_boxes=True),),
}
NUM_PADDING = 9  # rows of NaN behind the sequences, and as many tiles without queries


@dataclass(frozen=True, slots=True)
class Case:
    """One batch, and the heads of its model."""

    lengths: tuple[int, ...]
    num_heads: int = 2
    num_kv_heads: int = 2
    head_dim: int = 32
    block: int = 32
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    num_hidden: int = 0  # tokens at the end of each sequence that none sees, if it has others
    num_shared: int = 0  # tokens at the beginning of each sequence without queries, if it has others

    @property
    def cu_seqlens(self) -> Tensor:
        """int32 [B + 1]."""
        return torch.from_numpy(np.concatenate(([0], np.cumsum(self.lengths))).astype(np.int32)).to(self.device)

    @property
    def num_tokens(self) -> int:
        """Without padding."""
        return sum(self.lengths)

    @property
    def num_rows(self) -> int:
        """Of queries, without padding."""
        return self.num_tokens - int(self.shared.sum())

    @property
    def shared(self) -> NDArray[np.int32]:
        """[B], see tile_table."""
        return np.array([min(self.num_shared, max(0, length - 1)) for length in self.lengths], np.int32)

    def views(self) -> tuple[Tensor, Tensor, Tensor]:
        """[T, N, D] and twice [T, H, D] out of [T, (N + 2 H) D]."""
        counts = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        generator = torch.Generator().manual_seed(sum(self.lengths))
        rows = torch.randn((self.num_tokens + NUM_PADDING, sum(counts), self.head_dim), generator=generator)
        rows[self.num_tokens :] = torch.nan
        query, key, value = torch.split(rows.to(self.device, self.dtype), counts, dim=1)
        return query, key, value

    def tiles(self) -> Tiles:
        """Of all tokens."""
        num_keys = np.maximum(np.array(self.lengths) - self.num_hidden, 1)
        bounds = self.cu_seqlens.cpu().numpy()
        return self._tiles(tile_table(bounds, block=self.block, num_keys=num_keys, shared=self.shared))

    def pooled_tiles(self) -> Tiles:
        """Of the last token of each sequence."""
        starts = self.cu_seqlens.cpu().numpy()
        return self._tiles(pooled_tile_table(starts, starts[1:] - 1))

    def _tiles(self, table: np.ndarray) -> Tiles:
        padded = np.pad(table, ((0, NUM_PADDING), (0, 0)))
        return Tiles(torch.from_numpy(padded).to(self.device), self.block)


def rule_of(
    case: Case,
    *,
    is_causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    reach: int | None = None,  # of relative biases
) -> AttentionRule:
    bias = None
    if reach is not None:
        generator = torch.Generator().manual_seed(reach)
        bias = torch.randn((case.num_heads, 2 * reach + 1), generator=generator).to(case.device)
    return AttentionRule(is_causal, case.head_dim**-0.5, window, softcap, bias)

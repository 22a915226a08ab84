"""The kernels as `engine.fused.model.ops.Ops`, for tensors on the current GPU. None synchronises with the host.

Numbers are float16, bfloat16 or float32; float8 needs compute capability 8.9. Triton compiles a kernel again for each
combination of widths, divisibility of strides and alignment of pointers. None of these may depend on the number of
rows, so kernels ignore the alignment of pointers into a batch's int32 block.
"""

from torch import Tensor

from engine.fused.kernels.activation import activate, quantize
from engine.fused.kernels.attention import attend
from engine.fused.kernels.embedding import embed
from engine.fused.kernels.norm import add_norm
from engine.fused.kernels.pooling import pool
from engine.fused.kernels.rotary import rotate
from engine.fused.model.ops import (
    AttentionRule,
    EmbeddingTables,
    Heads,
    Inputs,
    Norm,
    NormedRows,
    NormOutputs,
    QuantizedRows,
    Rows,
    Tiles,
)


class TritonOps:
    """See engine.fused.model.ops.Ops."""

    def embed(self, inputs: Inputs, tables: EmbeddingTables) -> Tensor:
        """See Ops."""
        return embed(inputs, tables)

    def add_norm(
        self,
        delta: Tensor,
        residual: Tensor | None,
        norm: Norm,
        *,
        delta_norm: Norm | None = None,
        outputs: NormOutputs = NormOutputs.RESIDUAL | NormOutputs.ROWS,
    ) -> NormedRows:
        """See Ops."""
        return add_norm(delta, residual, norm, delta_norm=delta_norm, outputs=outputs)

    def rotate(self, rows: Tensor, positions: Tensor, angles: Tensor | None, heads: Heads) -> None:
        """See Ops."""
        rotate(rows, positions, angles, heads)

    def activate(self, rows: Tensor, activation: str, *, is_gated: bool, is_quantized: bool) -> Rows:
        """See Ops."""
        return activate(rows, activation, is_gated=is_gated, is_quantized=is_quantized)

    def quantize(self, rows: Tensor) -> QuantizedRows:
        """See Ops."""
        return quantize(rows)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, tiles: Tiles, rule: AttentionRule) -> Tensor:
        """See Ops."""
        return attend(query, key, value, tiles, rule)

    def pool(self, rows: Tensor, cu_seqlens: Tensor) -> Tensor:
        """See Ops."""
        return pool(rows, cu_seqlens)

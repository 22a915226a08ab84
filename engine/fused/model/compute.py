"""From a packed block to rows, on any device: the forward, and pooling where it is wanted. Knows no streams or graphs.

Shapes: T tokens and B sequences with padding, h hidden size.
"""

from torch import Tensor

from engine.fused.model.families import Forward
from engine.fused.model.ops import Ops
from engine.fused.runner.inputs import Inputs
from engine.fused.runner.packing import views
from engine.fused.runner.shape import Shape
from engine.rows.head_torch import TorchHead
from engine.types import OutputKind


class ModelCompute:
    """See engine.fused.runner.device.Compute."""

    def __init__(self, forward: Forward, ops: Ops, *, pooling: str, head: TorchHead) -> None:
        """pooling: "cls", "mean" or "last"; head: what follows it."""
        self._forward = forward
        self._ops = ops
        self._pooling = pooling
        self._head = head

    def __call__(self, block: Tensor, shape: Shape) -> dict[OutputKind, Tensor]:
        """Rows of tokens in the model's dtype, those of sequences too unless they are means or a head made them."""
        inputs = views(block, shape)
        is_pruned = shape.outputs == OutputKind.POOLED and self._pooling != "mean"
        rows = self._forward(inputs, is_pruned=is_pruned)
        if is_pruned:
            return {OutputKind.POOLED: self._head(rows)}
        results = {OutputKind.TOKENS: rows} if OutputKind.TOKENS in shape.outputs else {}
        if OutputKind.POOLED in shape.outputs:
            results[OutputKind.POOLED] = self._head(self._pooled(rows, inputs))
        return results

    def _pooled(self, rows: Tensor, inputs: Inputs) -> Tensor:
        if self._pooling == "mean":
            return self._ops.pool(rows, inputs.cu_seqlens)
        return rows.index_select(0, inputs.pooled)

"""The ops of engine.fused.model.ops as Triton kernels for NVIDIA GPUs. Knows nothing of models.

None synchronises with the host. Numbers are float16, bfloat16 or float32; float8 needs compute capability 8.9. Triton
compiles a kernel again for each combination of widths, divisibility of strides and alignment of pointers. None of these
may depend on the number of rows, so kernels ignore the alignment of pointers into a batch's int32 block.
"""

from engine.fused.kernels.activation import activate, quantize
from engine.fused.kernels.attention import attend
from engine.fused.kernels.embedding_pooling import embed, gather, pool
from engine.fused.kernels.norm import add_norm
from engine.fused.kernels.rotary import rotate
from engine.fused.kernels.vocabulary import vocabulary_weights


class TritonOps:
    """See engine.fused.model.ops.Ops. For tensors on the current GPU."""

    embed = staticmethod(embed)
    add_norm = staticmethod(add_norm)
    rotate = staticmethod(rotate)
    activate = staticmethod(activate)
    quantize = staticmethod(quantize)
    attend = staticmethod(attend)
    gather = staticmethod(gather)
    pool = staticmethod(pool)
    vocabulary_weights = staticmethod(vocabulary_weights)

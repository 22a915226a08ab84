"""The attention kernels that PyTorch brings: FlashAttention-2 and cuDNN's, each an Attend of engine.fused.model.blocks.

Neither computes softcaps or relative biases, and cuDNN's no windows. Both take the longest sequence's length as a size,
so a recorded graph holds for batches up to that length, and launches programs for queries that are not there.

PyTorch builds cuDNN's plan anew on every call for packed sequences: host time, which a recorded graph spends only once.
Earlier versions of PyTorch took rows to be adjacent there; timing.py checks at load whether this one does, and whether
it copes with empty sequences.
"""

from typing import Protocol

import torch
from torch import Tensor

from engine.fused.model.blocks import Attend
from engine.fused.model.ops import AttentionRule, Inputs
from engine.fused.model.spec import Spec
from engine.machine.varlen import has_varlen, varlen

_MAX_CUDNN_HEAD_DIM = 128


class Alternative(Attend, Protocol):
    """Attention of all tokens by a kernel of a library."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    def supports(self, spec: Spec, dtype: torch.dtype, capability: tuple[int, int], *, has_bias: bool) -> bool:
        """Whether it can compute this model's attention on a GPU of this compute capability."""
        ...


class FlashAttend:
    """FlashAttention-2; made for Ampere, so it leaves a part of Hopper unused."""

    name = "FlashAttention-2"

    def supports(self, spec: Spec, dtype: torch.dtype, capability: tuple[int, int], *, has_bias: bool) -> bool:
        """See Alternative."""
        return spec.softcap is None and not has_bias and has_varlen(spec.head_dim, dtype, capability)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, inputs: Inputs, rule: AttentionRule) -> Tensor:
        """See Attend."""
        return varlen(
            query,
            key,
            value,
            inputs.cu_seqlens,
            inputs.max_seqlen,
            is_causal=rule.is_causal,
            scaling=rule.scaling,
            window=rule.window,
        )


class CudnnAttend:
    """cuDNN's, for Hopper and data-centre Blackwell."""

    name = "cuDNN"

    def supports(self, spec: Spec, dtype: torch.dtype, capability: tuple[int, int], *, has_bias: bool) -> bool:
        """See Alternative."""
        if spec.softcap is not None or has_bias or any(layer.window is not None for layer in spec.layers):
            return False
        is_head = spec.head_dim <= _MAX_CUDNN_HEAD_DIM and spec.head_dim % 8 == 0
        return is_head and capability[0] in (9, 10) and dtype in (torch.float16, torch.bfloat16)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, inputs: Inputs, rule: AttentionRule) -> Tensor:
        """See Attend."""
        rows: Tensor = torch.ops.aten._cudnn_attention_forward(
            query,
            key,
            value,
            None,
            inputs.cu_seqlens,
            inputs.cu_seqlens,
            inputs.max_seqlen,
            inputs.max_seqlen,
            False,
            0.0,
            rule.is_causal,
            False,
            scale=rule.scaling,
        )[0]
        return rows

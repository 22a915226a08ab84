"""The fused engine's parts put together in memory around a random model, without folder, gate or cache."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.random_models import RandomModel, build
from benchmarks.gpu.shapes import Shape
from benchmarks.gpu.targets import FP8
from engine.fused.adapters import ADAPTERS
from engine.fused.assembly import ModelCompute
from engine.fused.attention import AttentionChoice, ChosenAttend, candidates_for, choose
from engine.fused.attention_timing import GpuTiming
from engine.fused.checkpoint.fuse import FusedWeights
from engine.fused.checkpoint.tensors import ModuleCheckpoint
from engine.fused.model.blocks import Attend, Blocks, Weights
from engine.fused.model.forwards import forward_of
from engine.fused.model.ops import Ops
from engine.fused.model.spec import Spec
from engine.fused.quantization.quantizing import QuantizableLinears, eligible
from engine.fused.runner.packing import Packer, Shapes, layout
from engine.fused.runner.packing import Shape as BatchShape
from engine.rows.modules_torch import RowModules
from engine.types import Batch, OutputKind

MAX_NUM_SEQS = 4096

_NUM_TOKENS = 16_384  # of the largest batch


@dataclass(frozen=True, slots=True)
class Parts:
    """What a forward is made of."""

    ops: Ops
    weights: Weights
    attend: Attend | None  # None = by tiles


class FusedModel:
    """One model at one precision."""

    def __init__(self, model: RandomModel, *, is_fp8: bool, max_num_tokens: int = _NUM_TOKENS) -> None:
        adapter = ADAPTERS.get(model.shape.model_type)
        assert adapter is not None, model.shape.model_type
        source = FusedWeights(
            ModuleCheckpoint(model.module),
            adapter,
            model.config,
            dtype=model.dtype,
            device=model.device,
            num_positions=model.shape.max_seqlen,
        )
        self.weights: Weights = source.weights()
        self.spec = source.spec
        self.shape = model.shape
        self.device = model.device
        if is_fp8:
            QuantizableLinears(self.weights.linears, plain=source.linear).set(eligible(self.spec))
        self.ops = ops_for(model.device)
        self.attention = _attention_of(model, self.spec, self.ops)
        self.attend = None if self.attention is None else ChosenAttend(self.attention, self.ops)
        self.compute = self.compute_by(Parts(self.ops, self.weights, self.attend))
        self.packer = Packer(
            vocab_size=model.shape.vocab_size,
            num_types=0,
            padding_idx=model.padding_idx,
            pooling=model.shape.pooling,
        )
        self.shapes = Shapes(
            max_num_tokens=max(max_num_tokens, model.shape.max_seqlen),
            max_num_seqs=MAX_NUM_SEQS,
            max_seqlen=model.shape.max_seqlen,
            has_token_types=False,
            kernel_max_seqlen=None if self.attention is None else self.attention.kernel_max_seqlen,
        )

    @property
    def note(self) -> str:
        """How it attends."""
        return "" if self.attention is None else self.attention.note

    def compute_by(self, parts: Parts) -> ModelCompute:
        """The forward, made of these."""
        forward = forward_of(Blocks(self.spec, parts.weights, parts.ops, attend=parts.attend))
        return ModelCompute(forward, parts.ops, pooling=self.shape.pooling, modules=RowModules())

    def packed(self, batch: Batch) -> tuple[Tensor, BatchShape]:
        """A batch's block on the device."""
        shape = self.shapes.of(batch)
        block = np.zeros(layout(shape).size, np.int32)
        self.packer.write(block, batch, shape)
        return torch.from_numpy(block).to(self.device), shape

    def call(self, batch: Batch) -> Callable[[], Tensor]:
        """The forward of a batch that is on the device already; gives the pooled rows, those of padding included."""
        block, shape = self.packed(batch)

        @torch.inference_mode()
        def forward() -> Tensor:
            return self.compute(block, shape)[OutputKind.POOLED]

        return forward

    def rows(self, batch: Batch) -> Tensor:
        """float32 [B, D]."""
        return self.call(batch)()[: batch.num_seqs].float()


@dataclass(frozen=True)
class Subject:
    """A model and a way to run it; its forms are made when they are asked for first, and kept."""

    shape: Shape
    way: str
    device: torch.device

    @cached_property
    def model(self) -> RandomModel:
        """As transformers has it."""
        return build(self.shape, self.device)

    @cached_property
    def fused(self) -> FusedModel:
        """The fused engine's, at the way's precision."""
        return FusedModel(self.model, is_fp8=self.way == FP8)


def ops_for(device: torch.device) -> Ops:
    """Kernels on a GPU, their meaning in torch on a CPU."""
    if device.type == "cpu":
        from engine.fused.model.reference import ReferenceOps

        return ReferenceOps()
    from engine.fused.kernels.ops import TritonOps

    return TritonOps()


def _attention_of(model: RandomModel, spec: Spec, ops: Ops) -> AttentionChoice | None:
    """As the engine chooses it when it loads a model; None on a CPU, where there is nothing to choose."""
    if model.device.type == "cpu":
        return None
    capability = torch.cuda.get_device_capability(model.device)
    max_seqlen = model.shape.max_seqlen
    candidates = candidates_for(spec, model.dtype, capability, has_bias=False, max_seqlen=max_seqlen)
    return choose(candidates, GpuTiming(spec, ops, model.dtype, model.device), max_seqlen=max_seqlen)

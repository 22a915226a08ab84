"""The fused engine's parts put together in memory around a random model, without folder, gate or cache."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.gpu.random_models import RandomModel, build
from benchmarks.gpu.shapes import Shape
from benchmarks.gpu.targets import FP8
from engine.fused.adapters import ADAPTERS
from engine.fused.assembly import max_graph_tokens
from engine.fused.model.forwards import Blocks, Weights
from engine.fused.model.linear import fallbacks, note_of_fallbacks, probe_products, products_of
from engine.fused.model.ops import Ops
from engine.fused.outputs import ModelCompute, Modules
from engine.fused.packing import Packer, Shapes, layout, row_counts
from engine.fused.packing import Shape as BatchShape
from engine.fused.quantization.quantizing import QuantizableLinears, eligible
from engine.fused.weights import FusedWeights
from engine.types import Batch, OutputKind

MAX_NUM_SEQS = 4096

_NUM_TOKENS = 16_384  # of the largest batch


class _ModuleCheckpoint:
    """See engine.fused.checkpoint.Checkpoint. The weights of a module, by its own names."""

    def __init__(self, module: nn.Module) -> None:
        self._tensors: dict[str, Tensor] = {name: tensor.detach() for name, tensor in module.state_dict().items()}
        self.names = frozenset(self._tensors)

    def read(self, name: str) -> Tensor:
        return self._tensors[name]

    def on_meta(self, name: str) -> Tensor:
        return self.read(name).to("meta")

    def in_words(self, name: str) -> str:
        return repr(name)


class FusedModel:
    """One model at one precision."""

    def __init__(self, model: RandomModel, *, is_fp8: bool, max_num_tokens: int = _NUM_TOKENS) -> None:
        adapter = ADAPTERS.get(model.shape.model_type)
        assert adapter is not None, model.shape.model_type
        source = FusedWeights(
            _ModuleCheckpoint(model.module),
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
        self.ops = ops_for(model.device)
        self.compute = self.compute_by(self.ops, self.weights)
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
            max_graph_tokens=max_graph_tokens(self.spec),
            outputs=OutputKind.POOLED | OutputKind.TOKENS,
        )
        self.probe_seconds, self.slower_products = 0.0, ""  # of products in FP8, and which have no kernel of their own
        if is_fp8:
            names = eligible(self.spec)
            QuantizableLinears(self.weights.linears, plain=source.linear).set(names)
            if model.device.type == "cuda":
                self._probe(names, model.dtype)

    def _probe(self, names: Iterable[str], dtype: torch.dtype) -> None:
        """As the engine does at load. Without it, a size that cuBLAS refuses would fail here and not there."""
        products, began = products_of(self.spec, names), time.perf_counter()
        counts = row_counts(self.shapes.max_num_tokens, MAX_NUM_SEQS)
        probe_products(products, row_counts=counts, device=self.device, dtype=dtype)
        torch.cuda.synchronize(self.device)
        self.probe_seconds = time.perf_counter() - began
        slower = fallbacks(products)
        self.slower_products = note_of_fallbacks(slower) if slower else ""

    def compute_by(self, ops: Ops, weights: Weights) -> ModelCompute:
        """The forward, made of these."""
        return ModelCompute(Blocks(self.spec, weights, ops), Modules(), pooling=self.shape.pooling)

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
            rows = self.compute(block, shape)[OutputKind.POOLED]
            assert isinstance(rows, Tensor)
            return rows

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
    from engine.fused.kernels import TritonOps

    return TritonOps()

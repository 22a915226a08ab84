"""Puts an engine together around a loaded model: forward, kernels, device, sizes, limits. Reads no files."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from engine.fused.cuda_device import CudaDevice, DeviceSizes
from engine.fused.engine import FusedEngine
from engine.fused.model.forwards import Blocks, Weights
from engine.fused.model.linear import fallbacks, note_of_fallbacks, products_of
from engine.fused.model.ops import Ops
from engine.fused.model.spec import Spec
from engine.fused.offer import FusedConfig
from engine.fused.outputs import ModelCompute, Modules
from engine.fused.packing import ROWS_OF_SEQUENCES, Packer, Shapes, layout, token_buckets
from engine.fused.runner import Device, HostDevice, Runner
from engine.model.tasks import VocabularyWeights
from engine.rows.query_table import NOTE_OF_TABLE
from engine.types import EngineLimits, ModelInfo, OutputKind

_DEPTH = 2  # a batch is staged while another computes
_NUM_SLOTS = 2 * _DEPTH  # for urgent batches and for others
# The first is long enough for 2,048 tokens of an 8B model in FP8 on an H100, which reaches 94 % of its full rate with
# them, and 90 % with 1,024 (measured).
_GPU_BATCHES: dict[str, Any] = {"max_batch_seconds": 0.030, "max_batch_seconds_mixed": 0.010}
# Tokens times parameters in linear layers: above it a batch computes for longer than its kernels take to launch from
# Python (about 25 ms at 10^15 operations a second), so that a graph gains nothing.
_MAX_GRAPH_WORK = 12_000_000_000_000
_MIN_MAX_GRAPH_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """All that an engine is put together from."""

    name: str  # as served
    reason: str  # why this engine
    chosen: FusedConfig
    spec: Spec
    weights: Weights
    modules: Modules
    ops: Ops
    max_num_seqs: int
    num_threads: int  # of the CPU
    quantization: str = "none"
    notes: tuple[str, ...] = ()  # what was decided and why, a line each


def max_graph_tokens(spec: Spec) -> int:
    """The most tokens of a batch that runs as a recorded graph."""
    return max(_MIN_MAX_GRAPH_TOKENS, _MAX_GRAPH_WORK // max(1, spec.num_linear_parameters))


def assemble(model: Model, *, max_num_tokens: int, records: bool = True) -> FusedEngine:
    """An engine for batches of this many tokens. records: graphs are, so the linear layers must not change any more.
    Raises torch.OutOfMemoryError where there is no room for its buffers."""
    chosen, tensors = model.chosen, model.weights.tensors
    folder = chosen.folder
    shapes = Shapes(
        max_num_tokens=max_num_tokens,
        max_num_seqs=model.max_num_seqs,
        max_seqlen=folder.max_seqlen,
        has_token_types="types" in tensors,
        max_graph_tokens=max_graph_tokens(model.spec) if records and chosen.capability is not None else 0,
        outputs=_computed(model),
    )
    head = model.spec.head
    packer = Packer(
        vocab_size=len(tensors["words"]),
        num_types=len(tensors["types"]) if "types" in tensors else 0,
        padding_idx=folder.padding_idx,
        pooling=_pooling(model),
        padding_id=None if head is None else head.padding_id,
        hides_tokens=folder.hides_tokens,
    )
    modules = model.modules
    runner = Runner(_device(model, shapes), packer, shapes, queries=modules.queries, unused_ids=modules.unused_ids)
    limits = _limits(shapes, is_gpu=chosen.capability is not None)
    return FusedEngine(runner, info=_info(model, packer), limits=limits)


def _device(model: Model, shapes: Shapes) -> Device:
    chosen, folder, largest = model.chosen, model.chosen.folder, shapes.largest
    words = next((head for head in folder.heads if isinstance(head, VocabularyWeights)), None)
    blocks = Blocks(model.spec, model.weights, model.ops)
    compute = ModelCompute(blocks, model.modules, pooling=_pooling(model), words=words)
    block_size = layout(largest).size
    if chosen.capability is None:
        return HostDevice(compute, block_size=block_size, num_slots=_NUM_SLOTS, num_threads=model.num_threads)
    sizes = DeviceSizes(
        block_size=block_size,
        num_slots=_NUM_SLOTS,
        max_num_seqs=largest.num_seqs,
        row_sizes={kind: folder.dimensions for kind in folder.outputs & ROWS_OF_SEQUENCES},
        memory_share=chosen.memory_share,
    )
    return CudaDevice(compute, chosen.device, sizes)


def _limits(shapes: Shapes, *, is_gpu: bool) -> EngineLimits:
    return EngineLimits(
        max_num_tokens=shapes.max_num_tokens,
        max_num_seqs=shapes.max_num_seqs,
        max_seqlen=shapes.max_seqlen,
        token_buckets=token_buckets(shapes.max_num_tokens),
        depth=_DEPTH,
        puts_urgent_first=True,
        **(_GPU_BATCHES if is_gpu else {}),
    )


def _info(model: Model, packer: Packer) -> ModelInfo:
    chosen = model.chosen
    folder = chosen.folder
    dtype = str(chosen.dtype).removeprefix("torch.")
    quantized = [name for name, linear in model.weights.linears.items() if linear.is_quantized]
    slower = fallbacks(products_of(model.spec, quantized))
    slower_note = (note_of_fallbacks(slower),) if slower else ()
    table_note = () if model.modules.queries is None else (NOTE_OF_TABLE,)
    info = folder.info(
        name=model.name,
        engine="fused",
        reason=model.reason,
        dtype=dtype if model.quantization == "none" else model.quantization,
        device=str(chosen.device),
        notes=(*model.notes, *slower_note, *table_note),
    )
    return dataclasses.replace(
        info,
        vocab_size=packer.vocab_size,
        token_dimensions=model.spec.hidden_size,
        num_fallback_products=sum(map(len, slower.values())),
    )


def _computed(model: Model) -> OutputKind:
    """The outputs of the model, and its hidden states, by which kernels are checked."""
    return model.chosen.folder.outputs | OutputKind.TOKENS


def _pooling(model: Model) -> str:
    """The pooling of what is one row a sequence: of embeddings, or of scores."""
    head = model.spec.head
    return model.chosen.folder.pooling if head is None or head.pooling is None else head.pooling

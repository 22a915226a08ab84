"""A device that computes nothing worth having, and fails whoever uses its slots or blocks out of turn."""

import dataclasses
import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.fused.engine import FusedEngine
from engine.fused.packing import ROWS_OF_SEQUENCES, Packer, Shape, Shapes, layout, views
from engine.fused.runner import Device, NumRows, Runner
from engine.rows.query_table import QueryTable
from engine.types import Batch, EngineLimits, OutputKind, Results, Rows
from tests.engine.engines import model_info
from tests.engine.tiny_models import batch

DEPTH = 2
SHAPES = Shapes(
    max_num_tokens=64,
    max_num_seqs=8,
    max_seqlen=32,
    has_token_types=False,
    max_graph_tokens=32,
    outputs=OutputKind(sum(OutputKind)) & ~OutputKind.TOKEN_LOGITS,
)
PACKER = Packer(vocab_size=1000, num_types=0, padding_idx=None, pooling="cls")


class RecordingDevice:
    """A sequence's row is its first token's id and its number of tokens; a token's row its id, and 0; a token's weight
    is a hundredth of its id."""

    def __init__(self) -> None:
        self.failure_at_start: Callable[[Shape], Exception | None] = lambda _: None
        self.failure_at_finish: Exception | None = None
        self.num_settled = 0
        self.shapes: list[Shape] = []
        self.order: list[int] = []  # slots in which batches were started
        self.gate = threading.Semaphore(1_000_000)  # taken once by each `finish`
        self._blocks = [np.full(layout(SHAPES.largest).size, -1, np.int32) for _ in range(2 * DEPTH)]
        self._inside: dict[int, tuple[Shape, NumRows, NDArray[np.int32]]] = {}

    def block(self, slot: int) -> NDArray[np.int32]:
        assert slot not in self._inside, "a block is written that is still being read"
        return self._blocks[slot]

    def start(self, slot: int, shape: Shape, num_rows: NumRows) -> None:
        assert slot not in self._inside
        self.shapes.append(shape)
        failure = self.failure_at_start(shape)
        if failure is not None:
            raise failure
        self.order.append(slot)
        self._inside[slot] = shape, num_rows, self._blocks[slot].copy()

    def finish(self, slot: int) -> Results:
        self.gate.acquire()
        assert next(iter(self._inside)) == slot, "a batch is waited for that is not the next one"
        shape, num_rows, packed = self._inside[slot]
        assert np.array_equal(packed, self._blocks[slot]), "a block has changed while it was being read"
        del self._inside[slot]
        if self.failure_at_finish is not None:
            raise self.failure_at_finish
        computed = {kind: num_rows.own(kind, rows_of_block(packed, shape, kind)) for kind in shape.outputs}
        return {kind: Rows(rows.numpy()) for kind, rows in computed.items() if isinstance(rows, torch.Tensor)}

    def settle(self) -> None:
        self.num_settled += 1


def rows_of_block(packed: NDArray[np.int32], shape: Shape, kind: OutputKind) -> torch.Tensor:
    """float32 [B, 2], [T, 2] or, of SPARSE, [T, 1], padding included."""
    inputs = views(torch.from_numpy(packed), shape)
    ids = inputs.token_ids
    if kind is OutputKind.SPARSE:
        return ids[:, None] / 100
    if kind not in ROWS_OF_SEQUENCES:
        return torch.stack((ids, torch.zeros_like(ids)), dim=1).float()
    return torch.stack((ids[inputs.pooled.long()], inputs.cu_seqlens.diff()), dim=1).float()


def engine_around(device: Device, *, queries: QueryTable | None = None, unused_ids: Sequence[int] = ()) -> FusedEngine:
    """An engine of depth 2."""
    info = model_info(max_seqlen=SHAPES.max_seqlen, vocab_size=PACKER.vocab_size)
    limits = EngineLimits(
        max_num_tokens=SHAPES.max_num_tokens,
        max_num_seqs=SHAPES.max_num_seqs,
        max_seqlen=SHAPES.max_seqlen,
        depth=DEPTH,
        puts_urgent_first=True,
    )
    runner = Runner(device, PACKER, SHAPES, queries=queries, unused_ids=unused_ids)
    return FusedEngine(runner, info=info, limits=limits)


def of_lengths(
    first: int, seqlens: Sequence[int] = (3, 1, 5), *, is_urgent: bool = False, gives_way: bool = False
) -> Batch:
    """Sequence i is made of the id `first` + i."""
    made = batch([[first + number] * seqlen for number, seqlen in enumerate(seqlens)])
    return dataclasses.replace(made, is_urgent=is_urgent, gives_way=gives_way)


def expected_rows(first: int, seqlens: Sequence[int] = (3, 1, 5)) -> list[list[float]]:
    """What RecordingDevice gives of such a batch."""
    return [[first + number, seqlen] for number, seqlen in enumerate(seqlens)]

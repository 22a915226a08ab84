"""All that waits for the engines of one model, and what of it goes into the next batch.

The two classes share a model by weighted deficit round robin. While both wait, bulk is owed
`bulk_share` of a batch with every batch. It is served what it is owed inside the batches that
interactive work leads, where it has the same output kind and fits; what it could not get there adds
up, and once a whole batch is owed, bulk leads one. So bulk waits for a bounded number of batches
however much interactive work comes, and interactive work never waits for two batches that bulk
leads in a row unless the last of them was a single sequence longer than a batch.

Room that one class leaves is lent to the other and never asked back.
"""

import math
from dataclasses import dataclass

from batch_manager.batches import Batch, Request
from batch_manager.queue import Queue
from engine.types import OutputKind
from wire.vocabulary import RequestClass

_INTERACTIVE, _BULK = RequestClass.INTERACTIVE, RequestClass.BULK


@dataclass(frozen=True, slots=True)
class Budget:
    """How large the next batch of one engine may be: by choice, and at all."""

    max_tokens: int
    max_num_tokens: int
    max_num_seqs: int
    token_buckets: tuple[int, ...] = ()

    def fits(self, batch: Batch) -> bool:
        """Whether the engine can take a batch that was packed for another."""
        return batch.num_tokens <= self.max_num_tokens and batch.num_seqs <= self.max_num_seqs

    def sealed(self, waiting_tokens: int) -> int:
        """`max_tokens`, or the largest bucket below where what waits fills it: beyond an edge, tokens are dear."""
        if waiting_tokens < self.max_tokens:
            return self.max_tokens
        return max((edge for edge in self.token_buckets if edge <= self.max_tokens), default=self.max_tokens)


class Backlog:
    """Waiting work of one model by output kind and class."""

    def __init__(self, bulk_share: float) -> None:
        self._bulk_share = bulk_share
        self._owed = 0.0  # to bulk, in batches
        self._queues: dict[OutputKind, tuple[Queue, Queue]] = {}

    def queue(self, request: Request) -> Queue:
        """Where this request waits."""
        queues = self._queues.get(request.outputs)
        if queues is None:
            queues = self._queues[request.outputs] = (Queue(), Queue())
        return queues[request.request_class]

    def num_tokens(self, request_class: RequestClass) -> int:
        """Tokens of one class that wait."""
        num_tokens = 0
        for queues in self._queues.values():
            num_tokens += queues[request_class].num_tokens
        return num_tokens

    def oldest(self, request_class: RequestClass) -> float:
        """When the oldest waiting request of one class arrived; inf where none waits."""
        if not self.num_tokens(request_class):
            return math.inf
        return min(queues[request_class].oldest for queues in self._queues.values())

    def next_batch(self, budget: Budget, *, may_be_suspect: bool) -> Batch | None:
        """Take out the next batch. Something must wait. None where it is a suspect's turn and that may not be."""
        interactive_waits = self.num_tokens(_INTERACTIVE) > 0
        is_shared = interactive_waits and self.num_tokens(_BULK) > 0
        owed = self._owed + self._bulk_share if is_shared else 0.0
        leader = _INTERACTIVE if interactive_waits and owed < 1 else _BULK
        queues = self._turn(leader)
        retry = queues[leader].next_retry
        if retry is not None and not budget.fits(retry):
            queues[leader].push_front(queues[leader].take_retry().slices)
            retry = None
        if retry is None:
            batch, charge = self._pack(queues, leader, budget=budget, owed=owed)
        elif retry.is_suspect and not may_be_suspect:
            return None
        else:
            batch, charge = queues[leader].take_retry(), float(leader == _BULK)
            batch.max_tokens = budget.max_tokens
        self._owed = owed - charge if is_shared else 0.0
        return batch

    def _turn(self, request_class: RequestClass) -> tuple[Queue, Queue]:
        """The queues of the output kind that this class has waited longest for."""
        kinds = list(self._queues.values())
        return kinds[0] if len(kinds) == 1 else min(kinds, key=lambda queues: queues[request_class].oldest)

    def _pack(
        self, queues: tuple[Queue, Queue], leader: RequestClass, *, budget: Budget, owed: float
    ) -> tuple[Batch, float]:
        """The batch, and what of a batch bulk was served of what it was owed."""
        leading, other = queues[leader], queues[1 - leader]
        max_tokens, max_seqs = budget.sealed(leading.num_tokens + other.num_tokens), budget.max_num_seqs
        batch = Batch()
        batch.max_tokens = max_tokens
        reserved = 0
        if leader == _INTERACTIVE and owed > 0 and self._turn(_BULK) is queues and other.next_retry is None:
            reserved = int(owed * max_tokens)
        leading.take(batch, max_tokens - reserved, max_seqs=max_seqs)
        led_tokens = batch.num_tokens
        if other.num_tokens and other.next_retry is None:
            other.take(batch, max_tokens, max_seqs=max_seqs)
        other_tokens = batch.num_tokens - led_tokens
        if reserved:
            leading.take(batch, max_tokens, max_seqs=max_seqs)
        if leader == _BULK:
            return batch, max(1.0, led_tokens / max_tokens)
        return batch, min(other_tokens, reserved) / max_tokens

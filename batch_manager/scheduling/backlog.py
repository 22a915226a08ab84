"""All that waits for the engines of one model, and what of it goes into the next batch.

The two classes share a model by weighted deficit round robin. While both wait, bulk is owed
`bulk_share` of a batch with every batch. It is served what it is owed inside the batches that
interactive work leads, where it has the same output kind and fits; what it could not get there adds
up, and once a whole batch is owed, bulk leads one. So bulk waits for a bounded number of batches
however much interactive work comes, and interactive work never waits for two batches that bulk
leads in a row unless the last of them was a single sequence longer than a batch.

Room that one class leaves is lent to the other and never asked back.

For example, bulk_share is 0.3, a batch takes 1,000 tokens, and much of both classes waits in sequences of 10 tokens.
Bulk is owed 0.3 of a batch, so 300 tokens are reserved; interactive work takes 700, bulk 300, and is charged the 0.3
it was owed: it is owed nothing and the next batch is the same. If bulk waits in sequences of 800, none fits into
300: interactive work takes these too, and bulk is charged nothing. In the next batches it is owed 0.6, then 0.9; now
900 are reserved, 800 are used and charged, interactive work takes the other 200, and 0.1 stays owed. A sequence of
1,000 does not fit into 900 either: bulk is then owed 1.2, which makes it the leader; the leader is charged a whole
batch at least, so 0.2 stays owed. Had it had 2,000 tokens, it would be charged two batches, and bulk wait the longer.
If only 100 tokens of interactive work wait beside small bulk sequences, bulk fills the other 900; it is charged the
300 that were reserved, and the 600 are lent.

Engines that put urgent batches first (`EngineLimits`) get batches of each class independently of the other, so here
nothing is owed; what bulk gets of such an engine is up to `ReadyEngine.owes_bulk`.

Inside a class, API keys share what it gets (see `queue.Shares`).

Suspects (see `scheduler`) wait in the place of their class: it is their class's turn when they are computed, and while
other work of their class waits too, the two take turns, so a thousand suspects hold nobody up for more than a batch
each, and do not wait without end themselves.
"""

import math

from batch_manager.scheduling.batches import Release, ScheduledBatch, ScheduledRequest, halves
from batch_manager.scheduling.queue import Queue, Shares
from batch_manager.scheduling.sizes import Budget
from engine.types import OutputKind
from wire.vocabulary import NUM_CLASSES, RequestClass

_INTERACTIVE, _BULK = RequestClass.INTERACTIVE, RequestClass.BULK


class Backlog:
    """Waiting work of one model by output kind and class.

    num_tokens  of each class that wait; to be read only
    """

    def __init__(self, bulk_share: float) -> None:
        self._bulk_share = bulk_share
        self._owed = 0.0  # to bulk, in batches
        self._suspect_was_last = [False] * NUM_CLASSES  # whether what was last computed of a class was a suspect
        self._shares = (Shares(), Shares())  # by class
        self.num_tokens = [0] * NUM_CLASSES
        self._queues: dict[OutputKind, tuple[Queue, Queue]] = {}

    def queue(self, request: ScheduledRequest) -> Queue:
        """The queue in which this request waits."""
        queues = self._queues.get(request.outputs)
        if queues is None:
            interactive, bulk = (Queue(self._shares[kind], self.num_tokens, kind) for kind in (_INTERACTIVE, _BULK))
            queues = self._queues[request.outputs] = (interactive, bulk)
        return queues[request.request_class]

    def oldest(self, request_class: RequestClass) -> float:
        """When the oldest waiting request of one class arrived; inf where none waits."""
        if not self.num_tokens[request_class]:
            return math.inf
        return min(queues[request_class].oldest for queues in self._queues.values())

    @property
    def has_suspects(self) -> bool:
        """Whether any wait."""
        return any([interactive.has_suspects or bulk.has_suspects for interactive, bulk in self._queues.values()])

    def next_batch_of(self, request_class: RequestClass, budget: Budget) -> ScheduledBatch:
        """Take out the next batch for which this class counts alone. Some of it must wait, and no suspects."""
        batch, _ = self._take(request_class, budget=budget, owed=0.0)
        self._suspect_was_last[request_class] = False
        return batch

    def next_batch(self, budget: Budget, *, may_be_suspect: bool) -> ScheduledBatch | None:
        """Take out the next batch. Something must wait. None where it is a suspect's turn and that may not be."""
        interactive_waits = self.num_tokens[_INTERACTIVE] > 0
        is_shared = interactive_waits and self.num_tokens[_BULK] > 0
        owed = self._owed + self._bulk_share if is_shared else 0.0
        leader = _INTERACTIVE if interactive_waits and owed < 1 else _BULK
        if not self._is_suspects_turn(leader):
            batch, charge = self._take(leader, budget=budget, owed=owed)
        elif may_be_suspect:
            batch, charge = self._take_suspect(leader, budget), float(leader == _BULK)
        else:
            return None
        self._suspect_was_last[leader] = batch.is_suspect
        self._owed = owed - charge if is_shared else 0.0
        return batch

    def _is_suspects_turn(self, request_class: RequestClass) -> bool:
        queues = [queues[request_class] for queues in self._queues.values()]
        if not any([queue.has_suspects for queue in queues]):
            return False
        return not self._suspect_was_last[request_class] or not any(queue.has_others for queue in queues)

    def _take_suspect(self, request_class: RequestClass, budget: Budget) -> ScheduledBatch:
        queue = min((queues[request_class] for queues in self._queues.values()), key=lambda queue: queue.oldest_suspect)
        batch = queue.take_suspect()
        while batch.num_seqs > 1 and not budget.fits(batch):  # it was in a larger engine
            queue.retry([ScheduledBatch(part, is_suspect=True) for part in halves(batch.slices)])
            batch = queue.take_suspect()
        batch.max_tokens = budget.max_tokens
        return batch

    def _take(self, leader: RequestClass, *, budget: Budget, owed: float) -> tuple[ScheduledBatch, float]:
        """The next batch that is no suspect, and what of a batch bulk was served of what it was owed."""
        queues = self._turn(leader)
        retry = queues[leader].next_retry
        if retry is None:
            return self._pack(queues, leader, budget=budget, owed=owed)
        batch = queues[leader].take_retry()
        if not budget.fits(batch):
            queues[leader].push_front(batch.slices)
            return self._pack(queues, leader, budget=budget, owed=owed)
        batch.max_tokens, batch.release = budget.max_tokens, Release.RETRY
        return batch, float(leader == _BULK)

    def _turn(self, request_class: RequestClass) -> tuple[Queue, Queue]:
        """The queues of the output kind that comes next in this class, suspects left aside: that of the key whose turn
        it is, and of several such the one that it has waited longest for."""
        kinds = list(self._queues.values())
        return kinds[0] if len(kinds) == 1 else min(kinds, key=lambda queues: queues[request_class].turn)

    def _pack(
        self, queues: tuple[Queue, Queue], leader: RequestClass, *, budget: Budget, owed: float
    ) -> tuple[ScheduledBatch, float]:
        """A batch of new work; `_take` says what is returned, and the top of this file has an example.

        reserved  tokens of the batch that are kept for bulk because it is owed them, where it can use them
        charge    in batches; what bulk got beyond what was reserved is lent
        """
        other_class = RequestClass(1 - leader)
        leading, other = queues[leader], queues[other_class]
        waiting_tokens = leading.num_tokens + min(other.num_tokens, budget.max_joined)
        max_tokens, max_seqs = budget.sealed(waiting_tokens), budget.max_num_seqs
        batch = ScheduledBatch()
        batch.max_tokens = max_tokens
        reserved = 0
        # what of the other class has to be computed by itself first is not passed by what came after it
        is_joined = other.num_tokens and other.next_retry is None and not self._is_suspects_turn(other_class)
        if is_joined and leader == _INTERACTIVE and owed > 0 and self._turn(_BULK) is queues:
            reserved = int(owed * max_tokens)
        leading.take(batch, max_tokens - reserved, max_seqs=max_seqs)
        led_tokens = batch.num_tokens
        if is_joined:
            other.take(batch, min(budget.max_joined, max_tokens), max_seqs=max_seqs)
        other_tokens = batch.num_tokens - led_tokens
        if other_tokens:
            self._suspect_was_last[other_class] = False
        if reserved:
            leading.take(batch, max_tokens, max_seqs=max_seqs)
        if leading.was_cut or (is_joined and other.was_cut and budget.max_joined >= max_tokens):
            batch.release = Release.FULL if max_tokens == budget.max_tokens else Release.BUCKET
        elif self.num_tokens[_INTERACTIVE] or self.num_tokens[_BULK]:
            batch.release = Release.KIND
        if leader == _BULK:
            return batch, max(1.0, led_tokens / max_tokens)
        return batch, min(other_tokens, reserved) / max_tokens

"""Remembers the inputs that have taken engines down, so that a client that sends one again takes down no more."""

import hashlib
import logging
from collections import Counter, OrderedDict
from itertools import accumulate, pairwise

from batch_manager.messages import Submission

SECONDS = 600.0  # for which an input is refused
MAX_INPUTS = 1024  # remembered at most; the oldest goes first

logger = logging.getLogger("embedline.batch_manager")

_Key = tuple[int, bytes]  # tokens of the sequence, and the hash of its model, ids and types


class Quarantine:
    """Hashes of sequences, each for SECONDS. Holds no ids, and costs nothing while it is empty."""

    def __init__(self) -> None:
        self._until: OrderedDict[_Key, float] = OrderedDict()  # time.monotonic() seconds, the soonest first
        self._seqlens: Counter[int] = Counter()  # of those: other sequences need not be hashed

    def add(self, submission: Submission, index: int, now: float) -> None:
        """Sequence `index` of this request took an engine down when it was alone with it."""
        start = sum(submission.seqlens[:index])
        seqlen = submission.seqlens[index]
        key = (seqlen, _digest(submission, start, start + seqlen))
        logger.error("an input of %d tokens takes engines down: it is refused for %d s", seqlen, SECONDS)
        if key not in self._until:
            self._seqlens[seqlen] += 1
        self._until[key] = now + SECONDS
        self._until.move_to_end(key)
        if len(self._until) > MAX_INPUTS:
            self._drop_first()

    def find(self, submission: Submission, now: float) -> int | None:
        """Which sequence of a request is in quarantine; None where none is."""
        while self._until and next(iter(self._until.values())) <= now:
            self._drop_first()
        if not self._until:
            return None
        bounds = pairwise(accumulate(submission.seqlens, initial=0))
        for index, (start, stop) in enumerate(bounds):
            seqlen = stop - start
            if seqlen in self._seqlens and (seqlen, _digest(submission, start, stop)) in self._until:
                return index
        return None

    def _drop_first(self) -> None:
        (seqlen, _), _ = self._until.popitem(last=False)
        self._seqlens[seqlen] -= 1
        if not self._seqlens[seqlen]:
            del self._seqlens[seqlen]


def _digest(submission: Submission, start: int, stop: int) -> bytes:
    digest = hashlib.blake2b(submission.model.to_bytes(4, "little"), digest_size=16)
    digest.update(memoryview(submission.token_ids)[4 * start : 4 * stop])
    types = memoryview(submission.token_type_ids)[4 * start : 4 * stop]
    if any(types):  # all zero is the same as none
        digest.update(types)
    return digest.digest()

"""A large request in parts for several batch managers, and their answers as one. Knows no process and no clock."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from batch_manager.messages import Answer, Submission
from engine.types import OutputKind, Rows

_ID_BYTES = 4


def even_shares(waits: Sequence[float], rates: Sequence[float], num_tokens: int) -> list[float]:
    """Tokens for each of several batch managers, so that all of them finish at the same time.

    `waits` are the seconds that each is busy already, `rates` the tokens a second of each. One that is busy for longer
    than the others need for all gets 0.
    """
    order = sorted(range(len(waits)), key=waits.__getitem__)
    total, rate, end = float(num_tokens), 0.0, 0.0
    for position, index in enumerate(order):
        total += rates[index] * waits[index]
        rate += rates[index]
        end = total / rate  # seconds from now, if only those up to here take a part
        if position + 1 == len(order) or end <= waits[order[position + 1]]:
            break
    return [max(0.0, rates[index] * (end - waits[index])) for index in range(len(waits))]


def split(submission: Submission, shares: Sequence[float]) -> list[Submission]:
    """A part of whole sequences for each share of the tokens, in order; one without sequences where nothing fits."""
    ends = np.cumsum(submission.seqlens)
    cuts = np.searchsorted(ends, np.cumsum(shares[:-1]) + 1).tolist()  # at the first one that goes over the share
    return [_part(submission, ends, *bounds) for bounds in itertools.pairwise([0, *cuts, len(ends)])]


def _part(submission: Submission, ends: NDArray[np.int64], first: int, last: int) -> Submission:
    start, end = (int(ends[index - 1]) * _ID_BYTES if index else 0 for index in (first, last))
    return replace(
        submission,
        seqlens=submission.seqlens[first:last],
        token_ids=memoryview(submission.token_ids)[start:end],
        token_type_ids=memoryview(submission.token_type_ids)[start:end],
    )


def join(answers: Sequence[Answer]) -> Answer:
    """The answers to all parts, in order, as the answer to the whole."""
    kinds = answers[0].results
    return Answer(
        results={kind: _joined(kind, answers) for kind in kinds},
        queue_seconds=max(answer.queue_seconds for answer in answers),
        compute_seconds=sum(answer.compute_seconds for answer in answers),
        has_joined=any(answer.has_joined for answer in answers),
    )


def _joined(kind: OutputKind, answers: Sequence[Answer]) -> Rows:
    rows = [answer.results[kind] for answer in answers]
    values = np.concatenate([one.values for one in rows])
    lengths = [np.diff(one.offsets) for one in rows if one.offsets is not None]
    if not lengths:
        return Rows(values)
    offsets = np.zeros(1 + sum(map(len, lengths)), np.int32)
    np.cumsum(np.concatenate(lengths), out=offsets[1:])
    return Rows(values, offsets)

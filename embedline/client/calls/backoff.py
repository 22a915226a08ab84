"""Whether a failed attempt is made again, and after what time."""

import random

from embedline.client.transport.failure import Failure, Kind

_AGAIN = frozenset({408, 409, 425, 429})
_NEVER_AGAIN = frozenset({501, 505})
_FACTOR = 4.0
_MAX_SECONDS = 30.0


def may_help(failure: Failure) -> bool:
    """Whether the same request may be answered next time."""
    if failure.kind is Kind.STATUS:
        assert failure.status is not None
        return failure.status in _AGAIN or (failure.status >= 500 and failure.status not in _NEVER_AGAIN)
    return failure.kind in (Kind.CONNECTION, Kind.TIMEOUT, Kind.NO_TURN, Kind.NO_THREAD)


def seconds_to_wait(failure: Failure, num_retries: int, *, initial: float, chance: random.Random) -> float:
    """Never less than the server asks for. Chance spreads out those that were refused together."""
    if failure.retry_after is not None:
        return failure.retry_after + chance.uniform(0.0, 0.1 + 0.1 * failure.retry_after)
    return chance.uniform(0.5, 1.0) * min(_MAX_SECONDS, initial * _FACTOR**num_retries)

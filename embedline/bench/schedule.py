"""The times at which an open loop sends its requests, fixed before the first one."""

import numpy as np
from numpy.typing import NDArray


def send_times(
    rate: float, *, seconds: float | None = None, num_requests: int | None = None, seed: int | None = None
) -> NDArray[np.float64]:
    """Seconds from the start, ascending: at equal distances, or with a `seed` at random as independent users come.

    `num_requests` of them, or else as many as fall into `seconds`.
    """
    generator = None if seed is None else np.random.default_rng(seed)
    if num_requests is not None:
        gaps = np.full(num_requests, 1 / rate) if generator is None else generator.exponential(1 / rate, num_requests)
        times: NDArray[np.float64] = np.cumsum(gaps) - gaps[0]
        return times
    assert seconds is not None
    if generator is None:
        return np.arange(np.ceil(seconds * rate)) / rate
    # given their number, the times of a Poisson process are independent and uniform
    return np.sort(generator.uniform(0, seconds, generator.poisson(rate * seconds)))

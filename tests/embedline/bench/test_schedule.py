"""When an open loop sends."""

import numpy as np
import pytest

from embedline.bench.load import send_times


def test_equal_gaps() -> None:
    assert send_times(4.0, seconds=1.1).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert send_times(4.0, num_requests=3).tolist() == [0.0, 0.25, 0.5]


def test_the_same_seed_gives_the_same_times_and_another_seed_others() -> None:
    first, same, other = (send_times(100.0, seconds=5.0, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("kind", ["seconds", "num_requests"])
def test_random_gaps_are_those_of_a_poisson_process(kind: str) -> None:
    rate, num = 50.0, 20_000
    times = (
        send_times(rate, seconds=num / rate, seed=3)
        if kind == "seconds"
        else send_times(rate, num_requests=num, seed=3)
    )
    gaps = np.diff(times)
    assert (gaps >= 0).all()
    assert len(times) == pytest.approx(num, abs=4 * num**0.5)
    # an exponential distribution: its mean and deviation are equal, and each quantile is -ln(1 - q) of the mean
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.03)
    assert gaps.std() == pytest.approx(1 / rate, rel=0.05)
    for quantile in (0.1, 0.5, 0.9, 0.99):
        assert np.quantile(gaps, quantile) == pytest.approx(-np.log(1 - quantile) / rate, rel=0.1)


def test_so_many_requests_are_so_many() -> None:
    times = send_times(10.0, num_requests=7, seed=0)
    assert len(times) == 7
    assert times[0] == 0.0


def test_within_so_many_seconds() -> None:
    times = send_times(1000.0, seconds=2.0, seed=5)
    assert times[0] >= 0
    assert times[-1] < 2.0

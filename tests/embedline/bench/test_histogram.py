"""Latencies as rows of text."""

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from embedline.bench.report import buckets, render_histogram


@example([999999.9999999999])
@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_every_latency_is_in_exactly_one_bucket(latencies: list[float]) -> None:
    ordered = sorted(latencies)
    found = buckets(ordered)
    assert sum(bucket.count for bucket in found) == len(ordered)
    assert len(found) <= 16
    for this, following in itertools.pairwise(found):
        assert this.high == following.low
    for bucket in found[1:]:
        assert bucket.count == sum(bucket.low <= latency < bucket.high for latency in ordered)


def test_bounds_are_round() -> None:
    assert [(bucket.low, bucket.high, bucket.count) for bucket in buckets([1.0, 1.1, 1.3, 2.4])] == [
        (1.0, 1.25, 2),
        (1.25, 1.6, 1),
        (1.6, 2.0, 0),
        (2.0, 2.5, 1),
    ]


def test_the_bar_shows_the_count_and_the_last_column_the_share() -> None:
    lines = render_histogram([1.0, 1.1, 1.3, 1.3, 1.3, 1.3])
    assert lines == [
        "       1 to 1.25     ms  " + f"{25 * '#':50}        2   33.3 %",
        "    1.25 to 1.6      ms  " + f"{50 * '#'}        4  100.0 %",
    ]


def test_of_nothing_there_are_no_rows() -> None:
    assert render_histogram([]) == []

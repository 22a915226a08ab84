"""When refused requests are told to come back."""

from server.requests.admission import ReturnTimes


def test_they_come_back_one_after_another() -> None:
    times = ReturnTimes()
    assert [round(times.take("a", 0.3, 100.0), 6) for _ in range(4)] == [0.0, 1.0, 2.0, 3.0]
    assert times.take("b", 0.3, 100.0) == 0.0  # another line
    assert round(times.take("a", 0.3, 102.5), 6) == 1.5
    assert times.take("a", 0.3, 1000.0) == 0.0  # long over


def test_a_long_overload_is_spread_over_some_minutes() -> None:
    times = ReturnTimes()
    seconds = [times.take("a", 3.0, 100.0) for _ in range(100)]
    assert max(seconds) <= 300
    in_each = [sum(at <= one < at + 50 for one in seconds) for at in range(0, 300, 50)]
    assert min(in_each) >= 10

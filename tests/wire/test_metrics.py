"""What a process counted leaves with its next heartbeat, once."""

from wire.metrics import BUCKETS, Recorder


def test_drain_gives_each_count_once() -> None:
    recorder = Recorder()
    recorder.count("a", "x")
    recorder.count("a", "x", by=2)
    recorder.count("a", "y")

    assert recorder.drain()["counts"] == [["a", "x", 3], ["a", "y", 1]]
    assert recorder.drain() == {"counts": [], "durations": []}


def test_a_duration_falls_into_the_bucket_whose_edge_it_does_not_pass() -> None:
    recorder = Recorder()
    for seconds in (BUCKETS[0], BUCKETS[3] + 1e-9, 1e9):
        recorder.observe("d", seconds=seconds)

    (_, cells) = recorder.drain()["durations"][0]

    assert [index for index, count in enumerate(cells[:-1]) if count] == [0, 4, len(BUCKETS)]
    assert cells[-1] == BUCKETS[0] + BUCKETS[3] + 1e-9 + 1e9

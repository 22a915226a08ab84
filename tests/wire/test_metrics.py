"""What a process counted leaves with its next heartbeat, once."""

import json

import pytest

from wire.metrics import POWERS, RATIOS, SECONDS, Edges, Recorder


def test_drain_gives_each_count_once() -> None:
    recorder = Recorder()
    recorder.count("a", "x")
    recorder.count("a", "x", by=2)
    recorder.count("a", "y")

    assert recorder.drain()["counts"] == [["a", "x", 3], ["a", "y", 1]]
    assert recorder.drain() == {"counts": [], "histograms": [], "levels": []}


def test_a_value_falls_into_the_bucket_whose_edge_it_does_not_pass() -> None:
    recorder = Recorder()
    for seconds in (SECONDS[0], SECONDS[3] + 1e-9, 1e9):
        recorder.observe("d", value=seconds)

    (_, cells) = recorder.drain()["histograms"][0]

    assert [index for index, count in enumerate(cells[:-1]) if count] == [0, 4, len(SECONDS)]
    assert cells[-1] == SECONDS[0] + SECONDS[3] + 1e-9 + 1e9


@pytest.mark.parametrize("edges", [SECONDS, POWERS, RATIOS])
def test_a_histogram_that_is_kept_counts_after_it_was_drained(edges: Edges) -> None:
    recorder = Recorder()
    kept = recorder.histogram("d", edges=edges)
    kept.observe(0)
    recorder.drain()
    for value in (0, *edges, edges[-1] + 1):
        kept.observe(value)

    ((_, cells),) = recorder.drain()["histograms"]
    assert cells[:-1] == [2, *[1] * len(edges)]


def test_the_first_edges_are_those_of_text_embeddings_inference() -> None:
    assert [edge / 1.5**k for k, edge in enumerate(SECONDS[:35], 1)] == pytest.approx([1e-5] * 35, rel=1e-5)
    assert sorted(SECONDS) == list(SECONDS)


def test_levels_are_read_with_every_drain() -> None:
    waiting: list[int] = []
    recorder = Recorder()
    recorder.watch("waiting", "frontend 0", level=lambda: len(waiting))
    waiting += [1, 2]

    assert recorder.drain()["levels"] == [["waiting", "frontend 0", 2]]
    assert json.loads(json.dumps(recorder.drain())) == {
        "counts": [],
        "histograms": [],
        "levels": [["waiting", "frontend 0", 2]],
    }

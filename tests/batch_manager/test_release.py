"""Why each batch was no larger: what operators read to know whether engines or clients are the bottleneck."""

from collections.abc import Callable
from typing import Any

import pytest

from batch_manager.messages import Policy
from batch_manager.scheduling.batches import Release
from engine.types import EngineErrorKind, OutputKind
from tests.batch_manager.harness import BULK, Harness, limits

SMALL = Policy(min_batch_tokens=10)
FAST = {"tokens_per_second": 100.0, "max_batch_seconds": 1.0, "max_batch_seconds_mixed": 0.3}


def die(harness: Harness) -> None:
    harness.lose()
    harness.ready()


def nothing(_: Harness) -> None:
    pass


def another_kind(harness: Harness) -> None:
    harness.offer(5, outputs=OutputKind.TOKENS)


def much_bulk(harness: Harness) -> None:
    harness.offer(*[10] * 12, request_class=BULK)


RELEASES: dict[str, tuple[Policy, dict[str, Any], list[int], Callable[[Harness], None], list[Release], int]] = {
    "by tokens": (Policy(), {}, [30] * 5, nothing, [Release.FULL, Release.DRAINED], 90),
    "by sequences": (Policy(), {"max_num_seqs": 4}, [1] * 6, nothing, [Release.FULL, Release.DRAINED], 4),
    "by a bucket": (Policy(), {"token_buckets": (16, 64)}, [10] * 12, nothing, [Release.BUCKET], 60),
    "by another kind": (Policy(), {}, [5], another_kind, [Release.KIND, Release.DRAINED], 5),
    "by the other class": (SMALL, FAST, [10], much_bulk, [Release.CLASS], 30),
    "for idle streams": (SMALL, {"streams": 2, "depth": 2}, [10] * 6, nothing, [Release.SHARE, Release.DRAINED], 30),
}


@pytest.mark.parametrize(
    ("policy", "engine", "seqlens", "also", "expected", "num_tokens"), RELEASES.values(), ids=RELEASES.keys()
)
def test_why_it_was_no_larger(
    policy: Policy,
    engine: dict[str, Any],
    seqlens: list[int],
    also: Callable[[Harness], None],
    expected: list[Release],
    num_tokens: int,
) -> None:
    harness = Harness(policy)
    harness.offer(*seqlens)
    also(harness)
    harness.ready(engine_limits=limits(**engine))
    harness.finish_all()
    assert [batch.release for batch in harness.dispatched][: len(expected)] == expected
    assert harness.dispatched[0].num_tokens == num_tokens


@pytest.mark.parametrize(
    ("end", "release"),
    [(lambda harness: harness.fail(kind=EngineErrorKind.FAILED), Release.RETRY), (die, Release.SUSPECT)],
    ids=["it failed", "its engine died"],
)
def test_what_is_tried_again(end: Callable[[Harness], None], release: Release) -> None:
    harness = Harness()
    harness.ready()
    harness.submit(5, 5)
    end(harness)
    harness.finish_all()
    assert [batch.release for batch in harness.dispatched] == [Release.DRAINED, release, release]

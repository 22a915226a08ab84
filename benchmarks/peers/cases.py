"""The loads that every server gets."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measuring.texts import Corpus, Prose

_GAP_SECONDS = 0.02
_LONG = (200, 256)  # tokens


@dataclass(frozen=True, slots=True)
class Case:
    """A load that every server gets."""

    name: str
    corpus: Corpus
    batch_size: int
    concurrency: int
    seconds: float
    gap: float = 0.0  # seconds between an answer and the next request

    def __str__(self) -> str:
        gap = f", {1000 * self.gap:.0f} ms after the last answer" if self.gap else ""
        return f"{self.name}: {self.concurrency} requests of {self.batch_size} in flight{gap}; {self.corpus}."


def cases(model: str, prose: Prose, *, is_quick: bool) -> list[Case]:
    """Those of every round. The larger model gets fewer texts at a time, or answers would take a minute."""
    mixed, query = prose.mixed(4096), prose.uniform("query", 512, num_tokens=10)
    long = prose.spread("long", 1024, num_tokens=_LONG)
    lone = [Case("lone query", query, 1, 1, 3.0), Case("lone query, 20 ms between", query, 1, 1, 6.0, _GAP_SECONDS)]
    if is_quick:
        if model == "bge-base":
            return [Case("mixed, 64 x 1", mixed, 1, 64, 3.0), Case("lone query", query, 1, 1, 2.0)]
        busy = [Case("mixed, 64 x 1", mixed, 1, 64, 3.0), Case("mixed, 8 x 32", mixed, 32, 8, 3.0)]
        return [
            *busy,
            *(dataclasses.replace(case, seconds=1.5) for case in lone),
            Case("long, 64 x 1", long, 1, 64, 3.0),
        ]
    short = prose.uniform("short", 4096, num_tokens=16)
    eighty = prose.uniform("80 tokens", 2048, num_tokens=80)
    if model == "bge-base":
        return [
            Case("mixed, 64 x 1", mixed, 1, 64, 15.0),
            *lone,
            Case("short, 64 x 1", short, 1, 64, 8.0),
            Case("80 tokens, 64 x 1", eighty, 1, 64, 12.0),
            Case("long, 16 x 1", long, 1, 16, 12.0),
        ]
    return [
        Case("mixed, 64 x 1", mixed, 1, 64, 8.0),
        Case("mixed, 8 x 32", mixed, 32, 8, 8.0),
        *lone,
        Case("short, 64 x 1", short, 1, 64, 3.0),
        Case("short, 8 x 32", short, 32, 8, 3.0),
        Case("80 tokens, 64 x 1", eighty, 1, 64, 5.0),
        Case("80 tokens, 8 x 32", eighty, 32, 8, 5.0),
        Case("long, 64 x 1", long, 1, 64, 7.0),
        Case("long, 8 x 32", long, 32, 8, 7.0),
    ]


def lone_query(loads: Sequence[Case]) -> Case:
    """The one that every set has."""
    return next(case for case in loads if case.name == "lone query")

"""How two outcomes are held against each other, and what is asked of one alone.

Shapes: N sequences, L numbers a row.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.tensorrt_llm_gpu.job import Job, Outcome


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one check."""

    found: str  # the figures
    asked: str  # what they have to be; "" = nothing
    has_passed: bool


Judge = Callable[[list[Outcome]], Verdict]


@dataclass(frozen=True, slots=True)
class Check:
    """Its jobs are computed in this order; one that others had too is computed once."""

    section: str
    title: str
    jobs: tuple[Job, ...]
    judge: Judge


def cosines(least: float | None = None, *, median: float | None = None, first_percentile: float | None = None) -> Judge:
    """Between rows of the first two outcomes, sequence by sequence."""
    limits = {"least": least, "first percentile": first_percentile, "median": median}

    def judge(outcomes: list[Outcome]) -> Verdict:
        each = _cosines(*_rows(outcomes))
        found = {
            "least": float(each.min()),
            "first percentile": float(np.quantile(each, 0.01)),
            "median": float(np.median(each)),
        }
        asked = {name: limit for name, limit in limits.items() if limit is not None}
        passed = all(found[name] >= limit for name, limit in asked.items())
        return Verdict(f"cosine {_listed(found)}", f"{_listed(asked)} or more" if asked else "", passed)

    return judge


def scores(most: float) -> Judge:
    """The largest difference of two scores, over the largest score."""

    def judge(outcomes: list[Outcome]) -> Verdict:
        rows, expected = _rows(outcomes)
        difference = float(np.abs(rows - expected).max() / np.abs(expected).max())
        return Verdict(f"difference {difference:.1e}", f"at most {most:.1e}", difference <= most)

    return judge


def refused(words: str) -> Judge:
    """The model must not be served, with a line that has these words."""

    def judge(outcomes: list[Outcome]) -> Verdict:
        (outcome,) = outcomes
        return Verdict(outcome.failure or "served", f"refused: {words}", words in outcome.failure)

    return judge


def served_or(words: str) -> Judge:
    """Either it is served, with batches as large as there is memory for, or refused so."""

    def judge(outcomes: list[Outcome]) -> Verdict:
        (outcome,) = outcomes
        found = outcome.failure or f"batches of {outcome.max_num_tokens} tokens"
        return Verdict(found, f"served, or {words}", outcome.rows is not None or words in outcome.failure)

    return judge


def speeds(outcomes: list[Outcome]) -> Verdict:
    """Nothing is asked of them but that there are some."""
    found = [
        f"{speed.shape}: {speed.milliseconds:.2f} ms, {speed.tokens_per_second:,.0f} tokens/s"
        for outcome in outcomes
        for speed in outcome.speeds
    ]
    return Verdict("; ".join(found) or _failures(outcomes), "", bool(found) and not _failures(outcomes))


def judged(check: Check, outcomes: list[Outcome]) -> Verdict:
    """A job that failed where rows were needed is a verdict too."""
    try:
        return check.judge(outcomes)
    except _NoRows as error:
        return Verdict(str(error), "rows", False)


class _NoRows(Exception):
    """There is nothing to compare."""


def _rows(outcomes: list[Outcome]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    first, second = (outcome.rows for outcome in outcomes)
    if first is None or second is None:
        raise _NoRows(_failures(outcomes))
    if first.shape != second.shape:
        raise _NoRows(f"rows of shape {first.shape}, and {second.shape}")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise _NoRows("rows that are not finite")
    return first, second


def _cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    """[N]"""
    a, b = first.astype(np.float64), second.astype(np.float64)
    found: NDArray[np.float64] = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return found


def _failures(outcomes: list[Outcome]) -> str:
    return "; ".join(outcome.failure for outcome in outcomes if outcome.failure)


def _listed(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.5f}" for name, value in figures.items())

"""Rank correlation with graded pairs of sentences, as SemEval measures it.

text_pairs.tsv has 80 pairs of our own, graded from 0 (unrelated) to 5 (the same).
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAIRS = Path(__file__).with_name("text_pairs.tsv")


@dataclass(frozen=True)
class Pairs:
    """Sentences, and how alike people find them."""

    grades: list[float]
    texts: list[str]  # first and second of each pair in turn


def graded_pairs() -> Pairs:
    """All of them."""
    with PAIRS.open() as file:
        rows = list(csv.reader(file, delimiter="\t"))
    return Pairs([float(grade) for grade, *_ in rows], [text for _, *both in rows for text in both])


def correlation(grades: list[float], rows: NDArray[np.float32]) -> float:
    """Spearman's, times 100, between the grades and the cosines of each pair's rows [2N, D]."""
    unit = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float64)
    cosines = (unit[0::2] * unit[1::2]).sum(axis=1)
    return float(np.corrcoef(ranks(np.array(grades)), ranks(cosines.round(6)))[0, 1] * 100)


def ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """From 0 up; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts + 1) / 2)[inverse]

"""How far what users get of a quantized model is from what they get of the plain one: the figures of each output, and
their limits.

Embeddings and vectors of tokens are compared by cosines without the mean row (see engine.selftest.fidelity), sparse
rows by plain ones: few entries are in all of them. Of scores it is how much they change behind the model's activation,
and what follows from that: the order of documents, or which label wins. The limits are guesses. Where rounding to
bfloat16 alone costs more than half of one, it is twice that noise (`Measured.widened`).

Shapes: N texts or tokens, D numbers a row, L scores.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from engine.model.tasks import Activation
from engine.selftest.fidelity import centred_cosines, fidelity
from engine.types import OutputKind

# Of each output its rows of each text [n, D]: one row of a text, or one of each token, or the entries of a sparse row.
Answers = dict[OutputKind, list[NDArray[np.float32]]]
_Numbers = NDArray[np.float64]

# Limits of cosines, and of the nearest ten texts of each text, which is what users see of it. With all-MiniLM-L6-v2 the
# least of them is reached at about the same error, and bfloat16 alone costs 0.8 % of the nearest.
MIN_MEDIAN = 0.998
MIN_P1 = 0.995
MIN_OVERLAP = 0.95
# Of scores from 0 to 1, or in standard deviations of the plain scores where these have no bounds.
MAX_MEDIAN_CHANGE = 0.002
MAX_CHANGE = 0.02
MIN_RANK_CORRELATION = 0.999  # Spearman's, of the documents of one query
MAX_CHANGED_WINNERS = 0.0
WINNER_MARGIN = 0.02  # by which a label leads that must still win
# The change of a score that is not finite: as wrong as can be, and JSON has no infinity.
_NOT_FINITE = 1e6
# A model whose bfloat16 rows are worse than this is worse than any limit is meant for.
_MAX_WIDENING = 10  # times the usual room; of what has none, so many
_SMALLEST = 1e-12  # of a length or a deviation

_MEDIANS = ("median", "median_change", "median_change_std")
_OF_MANY = ("overlap", "rank_correlation")  # what a few texts do not tell
_LABELS = {  # of figures, and how their values are written
    "median": ("cosine median", ".5f"),
    "p1": ("1st percentile", ".5f"),
    "minimum": ("lowest", ".5f"),
    "overlap": ("nearest ten the same", ".1%"),
    "median_change": ("median change", ".5f"),
    "largest_change": ("largest change", ".4f"),
    "median_change_std": ("median change in standard deviations", ".5f"),
    "largest_change_std": ("largest change in standard deviations", ".4f"),
    "rank_correlation": ("rank correlation", ".5f"),
    "changed_winners": ("changed winners", ".0f"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number about one output."""

    output: str  # an OutputKind in lower case
    name: str  # of _LABELS
    value: float
    best: float  # what it is where nothing changed: 1, and less is worse; or 0, and more is worse
    limit: float | None  # None = it is shown only
    is_wider: bool = False  # whether the limit is twice the noise of bfloat16, and not the usual one

    @property
    def passes(self) -> bool:
        """Whether it is within its limit."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.best else self.value <= self.limit

    @property
    def label(self) -> str:
        """Its name for people."""
        return _LABELS[self.name][0]

    def written(self, value: float) -> str:
        """A value of this figure for people."""
        return format(value, _LABELS[self.name][1])


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of all outputs of a model; see wire.dataclass_json for a file."""

    figures: tuple[Figure, ...]

    @property
    def passes(self) -> bool:
        """Whether all are within their limits."""
        return all(figure.passes for figure in self.figures)

    @property
    def has_near_rows(self) -> bool:
        """The same of those that a few texts tell."""
        return all(figure.passes for figure in self.figures if figure.name not in _OF_MANY)

    @property
    def cost(self) -> float:
        """How much of its limit the usual text takes up, of the output that is hit worst; layers are ordered by it."""
        held = (figure for figure in self.figures if figure.name in _MEDIANS)
        return max(abs(figure.value - figure.best) / abs(_limit(figure) - figure.best) for figure in held)

    @property
    def in_words(self) -> str:
        """The figures for a line of the log."""
        return self._joined(lambda figure: f"{figure.label} {figure.written(figure.value)}")

    @property
    def limits_in_words(self) -> str:
        """What is asked for."""
        held = Measured(tuple(figure for figure in self.figures if figure.limit is not None))
        return held._joined(
            lambda figure: f"{figure.label} {_limit(figure):.4g} or {'more' if figure.best else 'less'}"
        )

    def widened(self, noise: "Measured | None") -> "Measured":
        """The same figures, with limits of at least twice the noise, which is what bfloat16 costs beside float32."""
        if noise is None:
            return self
        costs = {(of.output, of.name): abs(of.value - of.best) for of in noise.figures}
        return Measured(tuple(_widened(figure, costs[figure.output, figure.name]) for figure in self.figures))

    @property
    def wider_than_usual(self) -> "Measured":
        """Those figures whose limits `widened` has changed."""
        return Measured(tuple(figure for figure in self.figures if figure.is_wider))

    def _joined(self, written: Callable[[Figure], str]) -> str:
        by_output = {
            output: ", ".join(map(written, own)) for output, own in groupby(self.figures, lambda of: of.output)
        }
        if len(by_output) == 1:
            return next(iter(by_output.values()))
        return "; ".join(f"{output}: {figures}" for output, figures in by_output.items())


def _limit(figure: Figure) -> float:
    assert figure.limit is not None
    return figure.limit


def _widened(figure: Figure, noise: float) -> Figure:
    if figure.limit is None or 2 * noise <= abs(figure.limit - figure.best):
        return figure
    room = min(2 * noise, _MAX_WIDENING * (abs(figure.limit - figure.best) or 1))
    return dataclasses.replace(figure, limit=figure.best - room if figure.best else room, is_wider=True)


@dataclass(frozen=True, slots=True)
class Measure:
    """What is measured of one model."""

    activation: Activation  # of the scores of texts; those of tokens always have a softmax
    num_ranked: int  # the first so many texts are the documents of one query, or all that are compared with each other

    def __call__(self, found: Answers, plain: Answers) -> Measured:
        """Hold the answers to some texts against the plain model's, which are finite, of the same outputs and
        shapes."""
        return Measured(tuple(figure for kind in plain for figure in self._of(kind, found[kind], plain[kind])))

    def _of(
        self, kind: OutputKind, found: list[NDArray[np.float32]], plain: list[NDArray[np.float32]]
    ) -> Iterator[Figure]:
        output = (kind.name or "").lower()
        if kind is OutputKind.SPARSE:
            yield from _cosines(output, np.array([_sparse_cosine(*rows) for rows in zip(found, plain, strict=True)]))
            return
        rows, right = np.concatenate(found), np.concatenate(plain)
        match kind:
            case OutputKind.POOLED:
                yield from _embeddings(output, rows, right)
            case OutputKind.MULTI_VECTOR:
                yield from _cosines(output, centred_cosines(rows, right))
            case OutputKind.TOKEN_LOGITS:
                yield from _labels(output, rows, right, Activation.SOFTMAX)
            case _:
                assert kind is OutputKind.LOGITS, kind
                yield from _labels(output, rows, right, self.activation)
                if right.shape[1] == 1:
                    ranks = _rank_correlation(rows[: self.num_ranked, 0], right[: self.num_ranked, 0])
                    yield Figure(
                        output=output, name="rank_correlation", value=ranks, best=1.0, limit=MIN_RANK_CORRELATION
                    )


def _embeddings(output: str, found: NDArray[np.float32], plain: NDArray[np.float32]) -> Iterator[Figure]:
    own = fidelity(found, plain)
    yield Figure(output=output, name="median", value=own.median_cosine, best=1.0, limit=MIN_MEDIAN)
    yield Figure(output=output, name="p1", value=own.p1_cosine, best=1.0, limit=MIN_P1)
    yield Figure(output=output, name="minimum", value=own.min_cosine, best=1.0, limit=None)
    yield Figure(output=output, name="overlap", value=own.overlap, best=1.0, limit=MIN_OVERLAP)


def _cosines(output: str, cosines: _Numbers) -> Iterator[Figure]:
    median, p1, least = float(np.median(cosines)), float(np.percentile(cosines, 1)), float(cosines.min())
    yield Figure(output=output, name="median", value=median, best=1.0, limit=MIN_MEDIAN)
    yield Figure(output=output, name="p1", value=p1, best=1.0, limit=MIN_P1)
    yield Figure(output=output, name="minimum", value=least, best=1.0, limit=None)


def _sparse_cosine(found: NDArray[np.float32], plain: NDArray[np.float32]) -> float:
    """The cosine of two rows of ids and weights [n, 2], over the ids of both; -1 where one is not finite."""
    if not np.isfinite(found).all():
        return -1.0
    weights, right = found[:, 1].astype(np.float64), plain[:, 1].astype(np.float64)
    _, own, others = np.intersect1d(found[:, 0], plain[:, 0], assume_unique=True, return_indices=True)
    lengths = np.linalg.norm(weights) * np.linalg.norm(right)
    if lengths == 0:
        return float(len(weights) == len(right))  # two rows without an entry are the same
    return float(weights[own] @ right[others] / lengths)


def _labels(
    output: str, found: NDArray[np.float32], plain: NDArray[np.float32], activation: Activation
) -> Iterator[Figure]:
    """Changes of raw scores [N, L] behind the activation: of each row that of the score that changed most."""
    scores, right = _activated(found, activation), _activated(plain, activation)
    has_bounds = activation is not Activation.IDENTITY
    suffix = "" if has_bounds else "_std"
    changes = np.abs(scores - right)
    if not has_bounds:
        deviations: _Numbers = right.std(axis=0)
        changes /= np.maximum(deviations, _SMALLEST)
    changes[~np.isfinite(found)] = _NOT_FINITE
    largest = np.minimum(changes.max(axis=1), _NOT_FINITE)
    median, most = float(np.median(largest)), float(largest.max())
    yield Figure(output=output, name=f"median_change{suffix}", value=median, best=0.0, limit=MAX_MEDIAN_CHANGE)
    yield Figure(output=output, name=f"largest_change{suffix}", value=most, best=0.0, limit=MAX_CHANGE)
    if has_bounds and right.shape[1] > 1:
        second, first = np.partition(right, -2, axis=1)[:, -2:].T
        is_other = (scores.argmax(axis=1) != right.argmax(axis=1)) & (first - second > WINNER_MARGIN)
        yield Figure(
            output=output, name="changed_winners", value=float(is_other.sum()), best=0.0, limit=MAX_CHANGED_WINNERS
        )


def _activated(raw: NDArray[np.float32], activation: Activation) -> _Numbers:
    """As users get them, see server.requests.work.activated; of what is not finite anything."""
    scores = np.where(np.isfinite(raw), raw, 0).astype(np.float64)
    if activation is Activation.IDENTITY:
        return scores
    if activation is Activation.SIGMOID:
        return 0.5 * (1 + np.tanh(scores / 2))  # the same function, and nothing in it overflows
    powers: _Numbers = np.exp(scores - scores.max(axis=1, keepdims=True))  # the largest is 1, so none overflows
    totals: _Numbers = powers.sum(axis=1, keepdims=True)
    return powers / totals


def _rank_correlation(found: NDArray[np.float32], plain: NDArray[np.float32]) -> float:
    """Spearman's of two columns of scores; equal ones share the mean of their ranks. -1 where one is not finite."""
    if not np.isfinite(found).all():
        return -1.0
    ranks, right = _ranks(found), _ranks(plain)
    if not right.any():  # the plain model tells nothing apart, so there is no order to keep
        return 1.0
    lengths = np.linalg.norm(ranks) * np.linalg.norm(right)
    return float(ranks @ right) / max(float(lengths), _SMALLEST)


def _ranks(scores: NDArray[np.float32]) -> _Numbers:
    """The rank of each score, less their mean."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks: _Numbers = (np.cumsum(counts) - (counts + 1) / 2)[places]  # of equal ones the middle of their ranks
    return ranks - (len(scores) - 1) / 2

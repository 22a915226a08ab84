"""The quality gate: quantizes only as many layers as leave a model's rows nearly unchanged. Knows no model, no tensors.

Rows of fixed texts are computed with all layers plain, then with all quantized. If these differ too much, each layer is
quantized alone on a few of the texts, which shows how sensitive it is. That gives an order in which layers are reverted
to plain (`steps_back`), and a binary search finds how few reverts are enough. The search assumes that more plain layers
never make the rows worse, which may not hold to the last digit; but its result has been measured itself.
A model costs two computations of all texts where the first try passes, and about ten where it does not.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.selftest.fidelity import Fidelity, fidelity
from engine.selftest.sample_ids import Sequences
from engine.types import ModelError

SCHEME = "fp8_row"  # what is measured: FP8 with a scale for each row

# Limits of cosines without the mean row, and of the nearest ten texts of each text, which is what users see of it. With
# all-MiniLM-L6-v2 the least of them is reached at about the same error, and bfloat16 alone costs 0.8 % of the nearest.
MIN_MEDIAN = 0.998
MIN_P1 = 0.995
MIN_OVERLAP = 0.95
_NUM_PROBES = 16  # texts on which each layer is tried alone
_MAX_PROBE = 1024  # tokens of one: long ones would cost too much for each layer
_MAX_NAMES = 4  # listed in a note

# What `o` and `down` take comes out of attention and of a gated product, where no norm keeps outliers down; `o` gains
# least, too. (all-MiniLM-L6-v2, not gated, has none: there `o` costs least and `gate_up` most.)
_BEHIND_NO_NORM = ("o", "down")
_BEHIND_NORM = ("qkv", "gate_up")

Rows = NDArray[np.float32]  # [B, D]
# Pooled rows of these sequences, as the model gives them where just these linear layers are quantized.
Compute = Callable[[Sequences, frozenset[str]], Rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a gate; see wire.dataclass_json for a file."""

    num_texts: int
    num_tokens: int  # of all texts
    max_seqlen: int  # of the longest
    quantized: tuple[str, ...]  # names of the linear layers that are to be
    reverted: tuple[str, ...]  # those that could be, and are to stay plain
    fidelity: Fidelity  # as they are to be
    fidelity_of_all: Fidelity  # with nothing reverted
    passed: bool  # something is quantized, and meets both limits
    is_enforced: bool  # False = it was measured, and nothing follows from it
    num_evaluations: int  # computations of all texts with something quantized

    @property
    def note(self) -> str:
        """A line for the log and for /info."""
        num_layers = len(self.quantized) + len(self.reverted)
        measured = f"{self.fidelity.figures}, against the plain model on {self._texts}"
        if not self.is_enforced:
            verdict = "would pass" if self.passed else "would not pass"
            return f"{SCHEME} in {num_layers} linear layers, not gated ({verdict}): {measured}"
        if not self.quantized:
            with_all = f"{self.fidelity_of_all.figures} with all of them, on {self._texts}"
            return f"{SCHEME} was rejected, each linear layer costs too much: {with_all}"
        if not self.reverted:
            return f"{SCHEME} in all {num_layers} linear layers: {measured}"
        little = "; most of its gain in speed is lost" if 2 * len(self.quantized) < num_layers else ""
        return (
            f"{SCHEME} in {len(self.quantized)} of {num_layers} linear layers: {measured}; "
            f"plain again: {_listed(self.reverted)}{little}"
        )

    @property
    def _texts(self) -> str:
        return f"{self.num_texts} texts of up to {self.max_seqlen} tokens"


def check(compute: Compute, names: Sequence[str], sequences: Sequences, *, is_enforced: bool = True) -> Outcome:
    """Find the linear layers that may be quantized, at least one. The model is left as `compute` last left it. Raises
    ModelError where the plain model's rows are not finite."""
    assert names
    gate = _Gate(compute, sequences)
    of_all = gate.evaluate(frozenset(names))
    found, reverted = of_all, frozenset[str]()
    if is_enforced and not passes(of_all):
        found, reverted = gate.revert(names)
    quantized = tuple(name for name in names if name not in reverted)
    return Outcome(
        num_texts=len(sequences),
        num_tokens=sum(map(len, sequences)),
        max_seqlen=max(map(len, sequences)),
        quantized=quantized,
        reverted=tuple(name for name in names if name in reverted),
        fidelity=found,
        fidelity_of_all=of_all,
        passed=bool(quantized) and passes(found),
        is_enforced=is_enforced,
        num_evaluations=gate.num_evaluations,
    )


def passes(found: Fidelity) -> bool:
    """Whether rows of all texts are near enough."""
    return _has_near_rows(found) and found.overlap >= MIN_OVERLAP


def _has_near_rows(found: Fidelity) -> bool:
    return found.median_cosine >= MIN_MEDIAN and found.p1_cosine >= MIN_P1


class _Gate:
    """One model and its texts."""

    def __init__(self, compute: Compute, sequences: Sequences) -> None:
        self._compute = compute
        self._sequences = sequences
        self._reference = compute(sequences, frozenset())
        if not np.isfinite(self._reference).all():
            raise ModelError(
                "the model gives rows that are not finite before anything is quantized; "
                "--engine transformers --dtype float32 --quantization none may serve it"
            )
        self.num_evaluations = 0

    def evaluate(self, quantized: frozenset[str]) -> Fidelity:
        """The fidelity on all texts."""
        self.num_evaluations += 1
        return fidelity(self._compute(self._sequences, quantized), self._reference)

    def revert(self, names: Sequence[str]) -> tuple[Fidelity, frozenset[str]]:
        """Go back as few steps as pass; return what passed."""
        alone = self._each_layer_alone(names)
        bad = frozenset(layer for layer, found in alone.items() if not _has_near_rows(found))
        steps = steps_back(names, {layer: 1 - found.median_cosine for layer, found in alone.items()}, bad)
        fewest, enough = 1, len(steps)  # all steps back leave the plain model, which need not be measured
        found = fidelity(self._reference, self._reference)
        while fewest < enough:
            middle = (fewest + enough) // 2
            tried = self.evaluate(frozenset(names) - _joined(steps[:middle]))
            if passes(tried):
                enough, found = middle, tried
            else:
                fewest = middle + 1
        return found, _joined(steps[:enough])

    def _each_layer_alone(self, names: Sequence[str]) -> dict[str, Fidelity]:
        """The fidelity of each layer alone, on a few texts."""
        short = [number for number, sequence in enumerate(self._sequences) if len(sequence) <= _MAX_PROBE]
        probes = [short[place] for place in np.unique(np.linspace(0, len(short) - 1, _NUM_PROBES).round().astype(int))]
        sequences, reference = [self._sequences[probe] for probe in probes], self._reference[probes]
        return {
            layer: fidelity(self._compute(sequences, frozenset(own)), reference)
            for layer, own in by_layer(names).items()
        }


def by_layer(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The names of each layer."""
    layers: dict[str, tuple[str, ...]] = {}
    for name in names:
        layer = name.rpartition(".")[0]
        layers[layer] = (*layers.get(layer, ()), name)
    return layers


def steps_back(
    names: Iterable[str], sensitivity: Mapping[str, float], bad: frozenset[str] = frozenset()
) -> list[tuple[str, ...]]:
    """The order in which layers go back: a few names a step, after the last step all have.

    `sensitivity` is what quantizing a layer alone costs, by layer, in any unit; `bad` are the layers that cost too much
    alone. Those go first. Then `o` and `down` of all layers, then the rest of the layers, in both the most sensitive
    first.
    """
    layers = by_layer(names)
    steps = [
        (layer not in bad, stage, -sensitivity[layer], tuple(name for name in layers[layer] if _kind(name) in kinds))
        for layer in layers
        for stage, kinds in enumerate((_BEHIND_NO_NORM, _BEHIND_NORM))
    ]
    return [step for *_, step in sorted(steps, key=lambda step: step[:3]) if step]


def _kind(name: str) -> str:
    return name.rpartition(".")[2]


def _joined(steps: Sequence[tuple[str, ...]]) -> frozenset[str]:
    return frozenset(name for step in steps for name in step)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")

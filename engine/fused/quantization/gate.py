"""The quality gate: quantizes only as many layers as leave what a model gives nearly unchanged. Knows no model, no
tensors.

The answers to fixed texts are computed with all layers plain, then with all quantized. If these differ too much, each
layer is quantized alone on a few of the texts, which shows how sensitive it is. That gives an order in which layers are
reverted to plain (`steps_back`), and a binary search finds how few reverts are enough. The search assumes that more
plain layers never make the answers worse, which may not hold to the last digit; but its result has been measured
itself. A model costs two computations of all texts where the first try passes, and about ten where it does not, and
then two more, to see what rounding to bfloat16 costs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine.fused.quantization.measures import Answers, Measure, Measured
from engine.types import ModelError

SCHEME = "fp8_row"  # what is measured: FP8 with a scale for each row

_NUM_PROBES = 16  # texts on which each layer is tried alone
_MAX_PROBE = 1024  # tokens of one: long ones would cost too much for each layer
_MAX_NAMES = 4  # listed in a note

# What `o` and `down` take comes out of attention and of a gated product, where no norm keeps outliers down; `o` gains
# least, too. (all-MiniLM-L6-v2, not gated, has none: there `o` costs least and `gate_up` most.)
_BEHIND_NO_NORM = ("o", "down")
_BEHIND_NORM = ("qkv", "gate_up")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One model and its texts, which have numbers from 0."""

    seqlens: Sequence[int]  # of all texts
    # The model's answers to these texts, where just these linear layers are quantized.
    compute: Callable[[Sequence[int], frozenset[str]], Answers]
    measure: Measure
    noise: Callable[[], Measured | None]  # what bfloat16 costs beside float32; None where there is no memory for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a gate; see wire.dataclass_json for a file."""

    num_texts: int
    num_tokens: int  # of all texts
    max_seqlen: int  # of the longest
    quantized: tuple[str, ...]  # names of the linear layers that are to be
    reverted: tuple[str, ...]  # those that could be, and are to stay plain
    found: Measured  # as they are to be
    found_of_all: Measured  # with nothing reverted
    noise: Measured | None = None  # that limits were held against; None = it was not needed, or there was no memory
    passed: bool  # something is quantized, and is within all limits
    is_enforced: bool  # False = it was measured, and nothing follows from it
    num_evaluations: int  # computations of all texts with something quantized

    @property
    def note(self) -> str:
        """A line for the log and for /info."""
        num_layers = len(self.quantized) + len(self.reverted)
        measured = f"{self.found.in_words}, against the plain model on {self._texts}{self._widened}"
        if not self.is_enforced:
            verdict = "would pass" if self.passed else "would not pass"
            return f"{SCHEME} in {num_layers} linear layers, not gated ({verdict}): {measured}"
        if not self.quantized:
            with_all = f"{self.found_of_all.in_words} with all of them, on {self._texts}{self._widened}"
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

    @property
    def _widened(self) -> str:
        """What of the limits is not the usual, and why."""
        wider = self.found_of_all.wider_than_usual
        return f" (limits of twice what bfloat16 costs: {wider.limits_in_words})" if wider.figures else ""


def check(subject: Subject, names: Sequence[str], *, is_enforced: bool = True) -> Outcome:
    """Find the linear layers that may be quantized, of at least one. The model is left as `compute` last left it.
    Raises ModelError where the plain model's answers are not finite."""
    assert names
    gate = _Gate(subject)
    of_all = gate.evaluate(frozenset(names))
    if is_enforced and not of_all.passes:
        of_all = gate.widen(of_all)
    found, reverted = of_all, frozenset[str]()
    if is_enforced and not of_all.passes:
        found, reverted = gate.revert(names)
    quantized = tuple(name for name in names if name not in reverted)
    return Outcome(
        num_texts=len(subject.seqlens),
        num_tokens=sum(subject.seqlens),
        max_seqlen=max(subject.seqlens),
        quantized=quantized,
        reverted=tuple(name for name in names if name in reverted),
        found=found,
        found_of_all=of_all,
        noise=gate.noise,
        passed=bool(quantized) and found.passes,
        is_enforced=is_enforced,
        num_evaluations=gate.num_evaluations,
    )


class _Gate:
    """One model and its texts."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._all = range(len(subject.seqlens))
        self._plain = subject.compute(self._all, frozenset())
        if not all(np.isfinite(rows).all() for answers in self._plain.values() for rows in answers):
            raise ModelError(
                "the model gives rows that are not finite before anything is quantized; "
                "--engine transformers --dtype float32 --quantization none may serve it"
            )
        self.noise: Measured | None = None
        self.num_evaluations = 0

    def evaluate(self, quantized: frozenset[str]) -> Measured:
        """The figures on all texts."""
        self.num_evaluations += 1
        return self._measured(self._all, quantized)

    def widen(self, found: Measured) -> Measured:
        """The same figures with limits that are no closer than rounding allows. All later ones have these, too."""
        self.noise = self._subject.noise()
        return found.widened(self.noise)

    def revert(self, names: Sequence[str]) -> tuple[Measured, frozenset[str]]:
        """Go back as few steps as pass; return what passed."""
        alone = self._each_layer_alone(names)
        bad = frozenset(layer for layer, found in alone.items() if not found.has_near_rows)
        steps = steps_back(names, {layer: found.cost for layer, found in alone.items()}, bad)
        fewest, enough = 1, len(steps)  # all steps back leave the plain model, which need not be computed
        found = self._subject.measure(self._plain, self._plain).widened(self.noise)
        while fewest < enough:
            middle = (fewest + enough) // 2
            tried = self.evaluate(frozenset(names) - _joined(steps[:middle]))
            if tried.passes:
                enough, found = middle, tried
            else:
                fewest = middle + 1
        return found, _joined(steps[:enough])

    def _each_layer_alone(self, names: Sequence[str]) -> dict[str, Measured]:
        """The figures of each layer alone, on a few texts."""
        short = [number for number, seqlen in enumerate(self._subject.seqlens) if seqlen <= _MAX_PROBE]
        probes = [short[place] for place in np.unique(np.linspace(0, len(short) - 1, _NUM_PROBES).round().astype(int))]
        return {layer: self._measured(probes, frozenset(own)) for layer, own in by_layer(names).items()}

    def _measured(self, texts: Sequence[int], quantized: frozenset[str]) -> Measured:
        plain = {kind: [answers[text] for text in texts] for kind, answers in self._plain.items()}
        return self._subject.measure(self._subject.compute(texts, quantized), plain).widened(self.noise)


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

"""The gate's decisions, on models made of nothing but an error for each linear layer."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.fused.quantization import gate, measures
from engine.fused.quantization.gate import Outcome, Subject
from engine.fused.quantization.measures import Answers, Figure, Measure, Measured
from engine.model.tasks import Activation
from engine.types import ModelError, OutputKind

NUM_LAYERS, NUM_TEXTS, DIMENSIONS = 24, 150, 64
NAMES = [f"layers.{layer}.{kind}" for layer in range(NUM_LAYERS) for kind in ("qkv", "o", "gate_up", "down")]
TEXTS = range(NUM_TEXTS)
MEASURE = Measure(Activation.SIGMOID, NUM_TEXTS)


class Model:
    """Each quantized layer turns all rows by its own angle, and each in a direction of its own, so that the squares of
    the angles add up."""

    def __init__(self, angles: dict[str, float]) -> None:
        self.angles = dict.fromkeys(NAMES, 0.0) | angles
        self.calls: list[tuple[int, frozenset[str]]] = []
        numbers = np.random.default_rng(0)
        # Some directions count more than others, as in models, or the nearest texts would hardly be nearer than others.
        spectrum = np.exp(-np.arange(DIMENSIONS) / 16)
        self.plain = numbers.normal(size=(NUM_TEXTS, DIMENSIONS)) * spectrum / np.sqrt(np.mean(spectrum**2))
        self.errors = {name: numbers.normal(size=self.plain.shape) for name in NAMES}

    def answers(self, texts: Sequence[int], quantized: frozenset[str]) -> Answers:
        self.calls.append((len(texts), quantized))
        rows = self.plain + sum(self.errors[name] * self.angles[name] for name in sorted(quantized))
        return {OutputKind.POOLED: list(np.asarray(rows[list(texts), None], np.float32))}

    def rows(self, quantized: frozenset[str]) -> NDArray[np.float32]:
        return np.concatenate(self.answers(TEXTS, quantized)[OutputKind.POOLED])

    def measured(self, quantized: frozenset[str]) -> Measured:
        return MEASURE(self.answers(TEXTS, quantized), self.answers(TEXTS, frozenset()))

    def check(self, *, is_enforced: bool = True, noise: Callable[[], Measured | None] = lambda: None) -> Outcome:
        subject = Subject(seqlens=[7] * NUM_TEXTS, compute=self.answers, measure=MEASURE, noise=noise)
        return gate.check(subject, NAMES, is_enforced=is_enforced)


def value(found: Measured, name: str) -> float:
    (figure,) = (figure for figure in found.figures if figure.name == name)
    return figure.value


def test_a_good_model_passes_at_once() -> None:
    model = Model(dict.fromkeys(NAMES, 0.003))
    outcome = model.check()
    assert outcome.passed
    assert (outcome.quantized, outcome.reverted) == (tuple(NAMES), ())
    assert outcome.num_evaluations == 1
    assert len(model.calls) == 2
    assert outcome.found == outcome.found_of_all
    assert "in all 96 linear layers" in outcome.note


@pytest.mark.holds("Only layers that passed the quality gate run in FP8")
@pytest.mark.parametrize("kind", ["qkv", "o", "gate_up", "down"])
def test_a_planted_bad_layer_goes_back(kind: str) -> None:
    bad = f"layers.7.{kind}"
    model = Model(dict.fromkeys(NAMES, 0.002) | {bad: 0.5})
    outcome = model.check()
    assert outcome.passed
    assert bad in outcome.reverted
    assert {name.rpartition(".")[0] for name in outcome.reverted} == {"layers.7"}
    assert outcome.num_evaluations <= 1 + math.ceil(math.log2(2 * NUM_LAYERS))
    assert not outcome.found_of_all.passes
    assert bad in outcome.note
    assert outcome.found == model.measured(frozenset(outcome.quantized))


def test_many_small_errors_take_the_narrow_layers_first() -> None:
    outcome = Model(dict.fromkeys(NAMES, 0.0065)).check()
    assert outcome.passed
    kinds = {name.rpartition(".")[2] for name in outcome.reverted}
    assert kinds == {"o", "down"}
    assert 0 < len(outcome.reverted) < 2 * NUM_LAYERS


@pytest.mark.holds("Only layers that passed the quality gate run in FP8", "Engines on a GPU")
def test_as_few_go_back_as_pass() -> None:
    model = Model({f"layers.{layer}.down": 0.002 * layer for layer in range(NUM_LAYERS)})
    outcome = model.check()
    assert outcome.passed
    downs = [int(name.split(".")[1]) for name in outcome.reverted if name.endswith("down")]
    assert downs == list(range(min(downs), NUM_LAYERS))  # the most sensitive ones
    one_more = frozenset(outcome.quantized) | {f"layers.{min(downs)}.down"}
    assert not model.measured(one_more).passes


def test_when_everything_is_bad_nothing_is_quantized() -> None:
    model = Model(dict.fromkeys(NAMES, 1.0))
    outcome = model.check()
    assert not outcome.passed
    assert (outcome.quantized, outcome.reverted) == ((), tuple(NAMES))
    assert value(outcome.found, "minimum") == 1.0
    assert value(outcome.found_of_all, "median") < 0.5
    assert "was rejected" in outcome.note


def test_little_is_said_to_be_little() -> None:
    outcome = Model({name: 0.02 for name in NAMES if not name.endswith("down")}).check()
    assert outcome.passed
    assert 0 < len(outcome.quantized) < len(NAMES) / 2
    assert "most of its gain in speed is lost" in outcome.note


@pytest.mark.parametrize(("angle", "passed"), [(0.001, True), (1.0, False)])
def test_measuring_alone_changes_nothing(angle: float, passed: bool) -> None:
    outcome = Model(dict.fromkeys(NAMES, angle)).check(is_enforced=False)
    assert outcome.passed is passed
    assert outcome.quantized == tuple(NAMES)
    assert outcome.num_evaluations == 1
    assert "not gated" in outcome.note


def test_rows_that_are_not_finite_fail() -> None:
    model = Model({"layers.3.gate_up": math.nan})
    outcome = model.check()
    assert outcome.passed
    assert value(outcome.found_of_all, "median") == -1
    assert "layers.3.gate_up" in outcome.reverted
    assert {name.rpartition(".")[0] for name in outcome.reverted} == {"layers.3"}


def test_a_plain_model_that_is_not_finite_is_an_error() -> None:
    model = Model({})
    model.plain[4, 2] = math.inf
    with pytest.raises(ModelError, match="not finite before anything is quantized"):
        model.check()


@pytest.mark.holds("Only layers that passed the quality gate run in FP8")
def test_what_all_texts_have_in_common_hides_no_error() -> None:
    """Every cosine with the plain row is above the limits. But arbitrary rows have one of 0.75, and what tells them
    apart is wrong by an eighth."""
    model = Model({})
    common = np.sqrt(3 * DIMENSIONS) * np.eye(DIMENSIONS)[0]
    model.plain += common
    model.angles["layers.7.down"] = 0.115
    plain, quantized = (model.rows(names) for names in (frozenset[str](), frozenset({"layers.7.down"})))
    products = np.linalg.norm(plain, axis=1) * np.linalg.norm(quantized, axis=1)
    assert np.percentile((plain * quantized).sum(axis=1) / products, 1) > measures.MIN_P1
    assert np.median((plain * quantized).sum(axis=1) / products) >= measures.MIN_MEDIAN
    outcome = model.check()
    assert not outcome.found_of_all.passes
    assert {name.rpartition(".")[0] for name in outcome.reverted} == {"layers.7"}
    assert outcome.passed


def test_texts_whose_neighbours_change_do_not_pass() -> None:
    """Texts in five groups, nearly the same within each: cosines stay near 1, and which ten are nearest is noise."""
    model = Model({"layers.7.down": 0.02})
    centres = model.plain[:5]
    model.plain = centres[np.arange(NUM_TEXTS) % 5] + 0.01 * model.plain
    outcome = model.check()
    assert value(outcome.found_of_all, "p1") > measures.MIN_P1
    assert value(outcome.found_of_all, "overlap") < measures.MIN_OVERLAP
    assert "layers.7.down" in outcome.reverted


def noise_of(median: float, p1: float, overlap: float = 1.0) -> Measured:
    figures = [("median", median), ("p1", p1), ("minimum", p1), ("overlap", overlap)]
    return Measured(tuple(Figure(output="pooled", name=name, value=of, best=1.0, limit=None) for name, of in figures))


def test_limits_are_no_closer_than_twice_what_bfloat16_costs() -> None:
    model = Model(dict.fromkeys(NAMES, 0.0065))
    assert not model.check().found_of_all.passes
    outcome = model.check(noise=lambda: noise_of(0.9981, 0.997))
    assert outcome.passed
    assert outcome.reverted == ()
    assert {figure.name: figure.limit for figure in outcome.found.wider_than_usual.figures} == {
        "median": pytest.approx(1 - 2 * 0.0019),
        "p1": pytest.approx(1 - 2 * 0.003),
    }
    wider = "cosine median 0.9962 or more, 1st percentile 0.994 or more"
    assert f"(limits of twice what bfloat16 costs: {wider})" in outcome.note


def test_limits_beyond_the_noise_stay() -> None:
    outcome = Model(dict.fromkeys(NAMES, 0.0065)).check(noise=lambda: noise_of(0.9991, 0.9976))
    assert outcome.found_of_all.wider_than_usual.figures == ()
    assert outcome.reverted != ()
    assert "bfloat16" not in outcome.note


def test_layers_go_back_to_the_wider_limits() -> None:
    model = Model(dict.fromkeys(NAMES, 0.012))
    usual = model.check()
    wider = model.check(noise=lambda: noise_of(0.9975, 0.996, 0.95))
    assert 0 < len(wider.reverted) < len(usual.reverted)
    assert wider.found == model.measured(frozenset(wider.quantized)).widened(wider.noise)


def test_noise_is_measured_only_where_a_limit_is_missed() -> None:
    def fail() -> Measured:
        raise AssertionError("the noise was measured")

    assert Model(dict.fromkeys(NAMES, 0.003)).check(noise=fail).passed
    assert not Model(dict.fromkeys(NAMES, 1.0)).check(noise=fail, is_enforced=False).passed

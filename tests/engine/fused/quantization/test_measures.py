"""The figures of each output: their definitions, and that each finds the damage that it is for."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.fused.quantization.measures import Answers, Figure, Measure, Measured
from engine.model.tasks import Activation
from engine.types import OutputKind
from wire.dataclass_json import from_json, to_json

Rows = NDArray[np.float32]
NUM_TEXTS = 120
LOGITS, TOKEN_LOGITS = OutputKind.LOGITS, OutputKind.TOKEN_LOGITS
SPARSE, MULTI_VECTOR = OutputKind.SPARSE, OutputKind.MULTI_VECTOR


def numbers(*shape: int, scale: float = 1.0, seed: int = 0) -> Rows:
    return np.asarray(np.random.default_rng(seed).normal(size=shape) * scale, np.float32)


def of_texts(rows: Rows) -> list[Rows]:
    """One row a text."""
    return list(rows[:, None])


def measured(
    kind: OutputKind, found: list[Rows], plain: list[Rows], activation: Activation = Activation.SIGMOID
) -> Measured:
    return Measure(activation, 100)({kind: found}, {kind: plain})


def figures(found: Measured) -> dict[str, float]:
    return {figure.name: figure.value for figure in found.figures}


def failing(found: Measured) -> set[str]:
    return {figure.name for figure in found.figures if not figure.passes}


def sigmoid(raw: Rows) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-raw.astype(np.float64)))


def softmax(raw: Rows) -> NDArray[np.float64]:
    powers = np.exp(raw.astype(np.float64))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def spearman(found: Rows, plain: Rows) -> float:
    """By its definition: the correlation of ranks, where equal ones share the mean of theirs."""
    ranks = np.array([[(rows < one).sum() + (rows == one).sum() / 2 for one in rows] for rows in (found, plain)])
    return float(np.corrcoef(ranks)[0, 1])


def test_changes_of_one_score_are_behind_the_sigmoid() -> None:
    plain = numbers(NUM_TEXTS, 1, scale=3)
    found = plain + numbers(NUM_TEXTS, 1, scale=0.01, seed=1)
    changes = np.abs(sigmoid(found) - sigmoid(plain))
    own = figures(measured(LOGITS, of_texts(found), of_texts(plain)))
    assert own["median_change"] == pytest.approx(np.median(changes))
    assert own["largest_change"] == pytest.approx(changes.max())
    assert own["rank_correlation"] == pytest.approx(spearman(found[:100, 0], plain[:100, 0]))
    assert "changed_winners" not in own


def test_equal_scores_share_their_rank() -> None:
    plain = np.round(numbers(100, 1, scale=2))
    found = np.round(plain + numbers(100, 1, seed=2))
    own = figures(measured(LOGITS, of_texts(found), of_texts(plain)))
    assert own["rank_correlation"] == pytest.approx(spearman(found[:, 0], plain[:, 0]))


def test_large_scores_overflow_nowhere() -> None:
    plain = np.array([[-1e4], [1e4], [0]], np.float32)
    assert figures(measured(LOGITS, of_texts(-plain), of_texts(plain)))["largest_change"] == 1
    with_two = np.hstack([plain, -plain])
    assert figures(measured(LOGITS, of_texts(-with_two), of_texts(with_two), Activation.SOFTMAX)) == {
        "median_change": 1,
        "largest_change": 1,
        "changed_winners": 2,
    }


def test_scores_without_bounds_change_by_their_deviations() -> None:
    plain = numbers(NUM_TEXTS, 1, scale=50) + np.float32(300)
    found = plain + np.float32(2)
    own = figures(measured(LOGITS, of_texts(found), of_texts(plain), Activation.IDENTITY))
    assert own["median_change_std"] == pytest.approx(2 / plain.std(), rel=1e-4)
    assert own["largest_change_std"] == pytest.approx(2 / plain.std(), rel=1e-4)


def test_each_of_several_scores_without_bounds_has_its_own_deviation() -> None:
    plain = numbers(NUM_TEXTS, 2) * np.array([1, 100], np.float32)
    found = plain + np.array([0.05, 0], np.float32)
    own = measured(LOGITS, of_texts(found), of_texts(plain), Activation.IDENTITY)
    assert failing(own) == {"median_change_std", "largest_change_std"}


def one_score_far_off(plain: Rows) -> Rows:
    found = plain.copy()
    found[7] += 0.2
    return found


def all_a_little_off(plain: Rows) -> Rows:
    return plain + np.float32(0.02)


def of_the_neighbour(plain: Rows) -> Rows:
    return np.roll(plain, 1, axis=0)


def order_lost(plain: Rows) -> Rows:
    """Nothing behind the sigmoid: all but a few documents have a score near 0."""
    found = plain.copy()
    found[10:100] = found[10:100][::-1]
    return found


SCORES = numbers(NUM_TEXTS, 1, scale=0.5)
NEAR_ZERO = np.sort(SCORES - 12, axis=0)[::-1].copy()


@pytest.mark.parametrize(
    ("plain", "damage", "expected"),
    [
        (SCORES, one_score_far_off, {"largest_change"}),
        (SCORES, all_a_little_off, {"median_change"}),
        (SCORES, of_the_neighbour, {"largest_change", "median_change", "rank_correlation"}),
        (NEAR_ZERO, order_lost, {"rank_correlation"}),
    ],
)
def test_planted_damage_to_scores_is_found(plain: Rows, damage: Callable[[Rows], Rows], expected: set[str]) -> None:
    assert failing(measured(LOGITS, of_texts(plain.copy()), of_texts(plain))) == set()
    assert failing(measured(LOGITS, of_texts(damage(plain)), of_texts(plain))) == expected


def test_only_the_documents_of_one_query_have_an_order() -> None:
    found = NEAR_ZERO.copy()
    found[100:] = found[100:][::-1]
    assert measured(LOGITS, of_texts(found), of_texts(NEAR_ZERO)).passes


def test_a_model_that_tells_nothing_apart_has_no_order() -> None:
    same = np.full((NUM_TEXTS, 1), 0.5, np.float32)
    assert measured(LOGITS, of_texts(same.copy()), of_texts(same)).passes
    own = measured(LOGITS, of_texts(same), of_texts(SCORES))
    assert figures(own)["rank_correlation"] == 0


def test_a_changed_winner_counts_beyond_the_margin() -> None:
    plain = np.log(np.array([[0.505, 0.495], [0.53, 0.47], [0.9, 0.1]], np.float32))
    found = np.log(np.array([[0.495, 0.505], [0.47, 0.53], [0.9, 0.1]], np.float32))
    own = figures(measured(LOGITS, of_texts(found), of_texts(plain), Activation.SOFTMAX))
    assert own["changed_winners"] == 1
    assert own["largest_change"] == pytest.approx(0.06, abs=1e-6)


@pytest.mark.parametrize("activation", [Activation.SIGMOID, Activation.SOFTMAX])
def test_changes_of_labels_are_those_of_the_label_that_changed_most(activation: Activation) -> None:
    plain, found = numbers(NUM_TEXTS, 5), numbers(NUM_TEXTS, 5, seed=1)
    activated = sigmoid if activation is Activation.SIGMOID else softmax
    changes = np.abs(activated(found) - activated(plain)).max(axis=1)
    own = figures(measured(LOGITS, of_texts(found), of_texts(plain), activation))
    assert own["median_change"] == pytest.approx(np.median(changes))
    assert own["largest_change"] == pytest.approx(changes.max())


def test_labels_of_tokens_are_compared_token_by_token() -> None:
    plain = [numbers(length, 9, seed=length) * 3 for length in range(1, 40)]
    found = [rows.copy() for rows in plain]
    assert measured(TOKEN_LOGITS, found, plain, Activation.IDENTITY).passes
    found[20][13] = -found[20][13]  # of one token among 780
    own = measured(TOKEN_LOGITS, found, plain, Activation.IDENTITY)
    assert failing(own) == {"largest_change", "changed_winners"}
    assert figures(own)["changed_winners"] == 1


def sparse(row: Rows) -> Rows:
    """The entries of a row over the vocabulary."""
    (ids,) = np.nonzero(row)
    return np.stack([ids, row[ids]], axis=1).astype(np.float32)


def test_cosines_of_sparse_rows_are_those_over_the_union_of_their_ids() -> None:
    plain, found = (np.maximum(numbers(NUM_TEXTS, 300, seed=seed) - 1, 0) for seed in (0, 1))
    found = plain + 0.1 * found
    expected = (plain * found).sum(axis=1) / np.linalg.norm(plain, axis=1) / np.linalg.norm(found, axis=1)
    own = figures(measured(SPARSE, [*map(sparse, found)], [*map(sparse, plain)]))
    assert own["minimum"] == pytest.approx(expected.min(), abs=1e-6)
    assert own["median"] == pytest.approx(np.median(expected), abs=1e-6)
    assert own["p1"] == pytest.approx(np.percentile(expected, 1), abs=1e-6)


def test_sparse_rows_with_other_ids_and_empty_ones() -> None:
    empty, one, other = (np.array(entries, np.float32).reshape(-1, 2) for entries in ([], [[3, 1]], [[4, 1]]))
    for found, plain, cosine in ((empty, empty, 1), (one, empty, 0), (empty, one, 0), (one, other, 0), (one, one, 1)):
        assert figures(measured(SPARSE, [found], [plain]))["minimum"] == cosine


def test_planted_damage_to_sparse_rows_is_found() -> None:
    plain = [sparse(np.maximum(row - 1, 0)) for row in numbers(NUM_TEXTS, 300)]
    assert measured(SPARSE, plain, plain).passes
    shifted = [rows + np.array([1, 0], np.float32) for rows in plain]
    assert failing(measured(SPARSE, shifted, plain)) == {"median", "p1"}
    halved = [rows[: len(rows) // 2] if at % 20 == 0 else rows for at, rows in enumerate(plain)]
    assert failing(measured(SPARSE, halved, plain)) == {"p1"}


def test_what_vectors_of_tokens_have_in_common_hides_no_error() -> None:
    common = np.eye(64)[0].astype(np.float32) * 20
    plain = [numbers(length, 64, seed=length) + common for length in range(1, 30)]
    found = [rows + numbers(*rows.shape, scale=0.1, seed=99) for rows in plain]
    both = np.concatenate(found), np.concatenate(plain)
    products = np.linalg.norm(both[0], axis=1) * np.linalg.norm(both[1], axis=1)
    assert ((both[0] * both[1]).sum(axis=1) / products).min() > 0.998
    assert measured(MULTI_VECTOR, plain, plain).passes
    assert failing(measured(MULTI_VECTOR, found, plain)) == {"median", "p1"}


def all_outputs(scale: float, kind: OutputKind | None = None) -> Answers:
    """Answers of a model with three kinds of output, of which one is off."""
    plain = {OutputKind.POOLED: numbers(NUM_TEXTS, 64), MULTI_VECTOR: numbers(NUM_TEXTS, 64, seed=5)}
    noise = numbers(NUM_TEXTS, 64, scale=scale, seed=6)
    answers = {own: of_texts(rows + (noise if own is kind else 0)) for own, rows in plain.items()}
    weights = np.maximum(numbers(NUM_TEXTS, 64, seed=7), 0)
    return answers | {SPARSE: [sparse(np.maximum(row, 0)) for row in weights + (noise if kind is SPARSE else 0)]}


@pytest.mark.parametrize("kind", [OutputKind.POOLED, SPARSE, MULTI_VECTOR])
def test_each_of_several_outputs_must_pass(kind: OutputKind) -> None:
    measure = Measure(Activation.IDENTITY, NUM_TEXTS)
    assert measure(all_outputs(0), all_outputs(0)).passes
    own = measure(all_outputs(0.5, kind), all_outputs(0))
    assert {figure.output for figure in own.figures if not figure.passes} == {(kind.name or "").lower()}
    assert own.cost > 1 > measure(all_outputs(0.01, kind), all_outputs(0)).cost > 0


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("kind", [OutputKind.POOLED, LOGITS, TOKEN_LOGITS, SPARSE, MULTI_VECTOR])
def test_what_is_not_finite_never_passes(kind: OutputKind, number: float) -> None:
    plain = [np.stack([np.arange(8), own], axis=1) for own in numbers(NUM_TEXTS, 8)]
    if kind in (OutputKind.POOLED, LOGITS):
        plain = [rows[:1] for rows in plain]
    found = [rows.copy() for rows in plain]
    assert measured(kind, found, plain, Activation.SOFTMAX).passes
    for rows in found[::10]:
        rows[0, 1] = number
    own = measured(kind, found, plain, Activation.SOFTMAX)
    assert not own.passes
    assert np.isfinite([figure.value for figure in own.figures]).all()


def test_a_score_that_is_not_finite_is_found_without_bounds() -> None:
    found = SCORES.copy()
    found[3] = np.nan
    own = measured(LOGITS, of_texts(found), of_texts(SCORES), Activation.IDENTITY)
    assert failing(own) == {"largest_change_std", "rank_correlation"}


def test_a_few_texts_do_not_tell_all() -> None:
    own = measured(LOGITS, of_texts(order_lost(NEAR_ZERO)), of_texts(NEAR_ZERO))
    assert not own.passes
    assert own.has_near_rows


def test_limits_follow_the_noise_of_each_figure() -> None:
    plain, found = of_texts(SCORES), of_texts(all_a_little_off(SCORES))
    own = measured(LOGITS, found, plain)
    (usual,) = (figure for figure in own.figures if figure.name == "median_change")
    noise = measured(LOGITS, of_texts(SCORES + np.float32(0.012)), plain)
    assert not own.passes
    assert own.widened(noise).passes
    (wider,) = own.widened(noise).wider_than_usual.figures
    assert wider.name == "median_change"
    assert wider.limit == pytest.approx(2 * figures(noise)["median_change"])
    assert usual.value > 0.002
    assert own.widened(measured(LOGITS, of_texts(SCORES + np.float32(0.003)), plain)) == own
    assert own.widened(None) is own


def test_limits_do_not_follow_any_noise() -> None:
    """A model that bfloat16 spoils would let everything pass."""
    plain = of_texts(SCORES)
    noise = measured(LOGITS, of_texts(SCORES[::-1].copy()), plain)
    limits = {figure.name: figure.limit for figure in measured(LOGITS, plain, plain).widened(noise).figures}
    assert limits["rank_correlation"] == pytest.approx(0.99)
    assert limits["median_change"] == pytest.approx(0.02)


def test_figures_are_read_as_they_were_written() -> None:
    own = measured(LOGITS, of_texts(all_a_little_off(SCORES)), of_texts(SCORES))
    assert from_json(Measured, to_json(own)) == own


def test_one_output_needs_no_name() -> None:
    own = Measured((Figure(output="sparse", name="p1", value=0.99, best=1.0, limit=0.995),))
    assert (own.in_words, own.limits_in_words) == ("1st percentile 0.99000", "1st percentile 0.995 or more")


def test_figures_and_limits_in_words() -> None:
    given = [("median", 0.99912345, 1.0, 0.998), ("minimum", 0.9, 1.0, None), ("overlap", 0.961, 1.0, 0.95)]
    own = Measured(
        (
            *(Figure(output="pooled", name=name, value=of, best=best, limit=at) for name, of, best, at in given),
            Figure(output="logits", name="changed_winners", value=2.0, best=0.0, limit=0.0),
        )
    )
    assert own.in_words == (
        "pooled: cosine median 0.99912, lowest 0.90000, nearest ten the same 96.1%; logits: changed winners 2"
    )
    assert own.limits_in_words == (
        "pooled: cosine median 0.998 or more, nearest ten the same 0.95 or more; logits: changed winners 0 or less"
    )

"""The gate's decisions, on models made of nothing but an error for each linear layer, and the texts that it takes."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from engine.fused.quantization import gate, gate_texts
from engine.fused.quantization.gate import Outcome, Rows
from engine.model import model_folder
from engine.selftest import sample_ids
from engine.selftest.fidelity import fidelity
from engine.selftest.sample_ids import Sequences
from engine.types import ModelError
from tokenizer_pool import tokenizer as pool
from tokenizer_pool.messages import TokenizerSpec

NUM_LAYERS, NUM_TEXTS, DIMENSIONS = 24, 150, 64
NAMES = [f"layers.{layer}.{kind}" for layer in range(NUM_LAYERS) for kind in ("qkv", "o", "gate_up", "down")]
SEQUENCES: Sequences = [np.array([number], np.int32) for number in range(NUM_TEXTS)]


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

    def rows(self, sequences: Sequences, quantized: frozenset[str]) -> Rows:
        self.calls.append((len(sequences), quantized))
        texts = [int(sequence[0]) for sequence in sequences]
        rows = self.plain + sum(self.errors[name] * self.angles[name] for name in sorted(quantized))
        return np.asarray(rows[texts], np.float32)

    def check(self, *, is_enforced: bool = True) -> Outcome:
        return gate.check(self.rows, NAMES, SEQUENCES, is_enforced=is_enforced)


def test_a_good_model_passes_at_once() -> None:
    model = Model(dict.fromkeys(NAMES, 0.003))
    outcome = model.check()
    assert outcome.passed
    assert (outcome.quantized, outcome.reverted) == (tuple(NAMES), ())
    assert outcome.num_evaluations == 1
    assert len(model.calls) == 2
    assert outcome.fidelity == outcome.fidelity_of_all
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
    assert not gate.passes(outcome.fidelity_of_all)
    assert bad in outcome.note
    measured = fidelity(model.rows(SEQUENCES, frozenset(outcome.quantized)), model.rows(SEQUENCES, frozenset()))
    assert outcome.fidelity == measured


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
    assert not gate.passes(fidelity(model.rows(SEQUENCES, one_more), model.rows(SEQUENCES, frozenset())))


def test_when_everything_is_bad_nothing_is_quantized() -> None:
    model = Model(dict.fromkeys(NAMES, 1.0))
    outcome = model.check()
    assert not outcome.passed
    assert (outcome.quantized, outcome.reverted) == ((), tuple(NAMES))
    assert outcome.fidelity.min_cosine == 1.0
    assert outcome.fidelity_of_all.median_cosine < 0.5
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
    assert outcome.fidelity_of_all.median_cosine == -1
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
    plain, quantized = (model.rows(SEQUENCES, names) for names in (frozenset[str](), frozenset({"layers.7.down"})))
    products = np.linalg.norm(plain, axis=1) * np.linalg.norm(quantized, axis=1)
    assert np.percentile((plain * quantized).sum(axis=1) / products, 1) > gate.MIN_P1
    assert np.median((plain * quantized).sum(axis=1) / products) >= gate.MIN_MEDIAN
    outcome = model.check()
    assert not gate.passes(outcome.fidelity_of_all)
    assert {name.rpartition(".")[0] for name in outcome.reverted} == {"layers.7"}
    assert outcome.passed


def test_texts_whose_neighbours_change_do_not_pass() -> None:
    """Texts in five groups, nearly the same within each: cosines stay near 1, and which ten are nearest is noise."""
    model = Model({"layers.7.down": 0.02})
    centres = model.plain[:5]
    model.plain = centres[np.arange(NUM_TEXTS) % 5] + 0.01 * model.plain
    outcome = model.check()
    assert outcome.fidelity_of_all.p1_cosine > gate.MIN_P1
    assert outcome.fidelity_of_all.overlap < gate.MIN_OVERLAP
    assert "layers.7.down" in outcome.reverted


def test_there_are_many_of_every_length() -> None:
    texts = gate_texts.texts()
    assert len(set(texts)) == len(texts) >= 128
    num_words = sorted(len(text.split()) for text in texts)
    assert num_words[0] == 1
    assert 350 <= num_words[-1] <= 500
    assert sum(not text.isascii() for text in texts) >= len(texts) / 3
    assert all(text == text.strip() or set(text) <= set("la. ") for text in texts)


def test_ids_are_those_of_the_tokenizer_pool(minilm_folder: Path) -> None:
    folder = model_folder.read(minilm_folder)
    tokenizer = pool.Tokenizer(TokenizerSpec(folder=str(minilm_folder), max_seqlen=folder.max_seqlen))
    tokens = tokenizer.encode(list(gate_texts.texts()))
    sequences = gate_texts.sequences(folder)
    np.testing.assert_array_equal(np.concatenate(sequences), tokens.token_ids)


def test_text_is_lower_cased_where_the_folder_asks_for_it(minilm_folder: Path) -> None:
    folder = dataclasses.replace(model_folder.read(minilm_folder), do_lower_case=True)
    upper, lower = sample_ids.of_texts(folder, ["HELLO THERE", "hello there"], max_seqlen=8)
    np.testing.assert_array_equal(upper, lower)
    [cut] = sample_ids.of_texts(folder, ["one two three four five six seven eight nine"], max_seqlen=8)
    assert len(cut) == 8


@pytest.mark.parametrize(("max_seqlen", "num_long"), [(256, 0), (512, 0), (1024, 1), (8192, 4)])
def test_long_texts_are_as_long_as_the_model_takes(max_seqlen: int, num_long: int, minilm_folder: Path) -> None:
    folder = dataclasses.replace(model_folder.read(minilm_folder), max_seqlen=max_seqlen)
    lengths = [len(sequence) for sequence in gate_texts.long_sequences(folder, is_cpu=False)]
    assert len(lengths) == num_long
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[:1] == [max_seqlen][:num_long]
    assert all(length > 512 for length in lengths)


def test_a_cpu_leaves_out_what_would_take_it_too_long(minilm_folder: Path) -> None:
    folder = dataclasses.replace(model_folder.read(minilm_folder), max_seqlen=8192)
    assert all(len(sequence) < 2048 for sequence in gate_texts.long_sequences(folder, is_cpu=True))


def test_a_tokenizer_that_knows_no_word_gets_arbitrary_ids(minilm_folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 4, "w5": 5}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    folder = dataclasses.replace(model_folder.read(minilm_folder), path=tmp_path, max_seqlen=8192)
    for found in (gate_texts.sequences(folder), gate_texts.long_sequences(folder, is_cpu=False)):
        ids, counts = np.unique(np.concatenate(found), return_counts=True)
        assert len(ids) > 500
        assert counts.max() < counts.sum() / 10


def test_without_a_tokenizer_ids_are_arbitrary(minilm_folder: Path, tmp_path: Path) -> None:
    folder = dataclasses.replace(model_folder.read(minilm_folder), path=tmp_path)
    sequences = sample_ids.of_texts(folder, ["one", "one two three"], max_seqlen=4)
    assert [len(sequence) for sequence in sequences] == [3, 4]
    assert all(sequence.max() < folder.vocab_size for sequence in sequences)

"""What is quantized, on which GPU and in what order it goes back; the gate's rows are those of one engine."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.fused import offer, weights
from engine.fused.assembly import Model, assemble
from engine.fused.engine import FusedEngine
from engine.fused.model.linear import PlainLinear
from engine.fused.model.reference import ReferenceOps
from engine.fused.outputs import Modules
from engine.fused.quantization import gate_answers
from engine.fused.quantization.gate import by_layer, steps_back
from engine.fused.quantization.gate_answers import GateAnswers
from engine.fused.quantization.gate_texts import GateTexts
from engine.fused.quantization.quantizing import MIN_LINEAR_PARAMETERS, QuantizableLinears, decide, eligible
from engine.model.tasks import TokenVectors, TokenWeights
from engine.selftest import sample_ids
from engine.selftest.fidelity import fidelity
from engine.selftest.sample_ids import Sequences
from engine.types import (
    Batch,
    Engine,
    EngineError,
    EngineLimits,
    ModelError,
    OutputKind,
    Results,
    Rows,
    compute,
)
from tests.engine.engines import load_options
from tests.engine.fused.model.models import SPEC, load_fused, save, source_of
from tests.engine.tiny_models import VOCAB_SIZE, arbitrary

SEQLENS = (5, 60, 1, 17, 33, 2, 64, 9, 9, 41, 3, 28)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    chosen = offer.choose(load_options(save("bert", tmp_path / "model")))
    source, _ = weights.open_model(chosen)
    return Model(
        name="m",
        reason="asked",
        chosen=chosen,
        spec=source.spec,
        weights=source.weights(),
        modules=Modules(),
        ops=ReferenceOps(),
        max_num_seqs=64,
        num_threads=3,
    )


@pytest.fixture
def sequences(model: Model) -> Sequences:
    return sample_ids.arbitrary(model.chosen.folder, SEQLENS)


def pooled(model: Model, sequences: Sequences, numbers: Sequence[int] = range(len(SEQLENS))) -> NDArray[np.float32]:
    answers = GateAnswers(model, GateTexts(sequences, None, len(sequences)))(numbers)
    return np.concatenate(answers[OutputKind.POOLED])


def test_rows_are_those_of_one_engine(model: Model, sequences: Sequences, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_answers, "_NUM_TOKENS_ON_CPU", 64)  # so that there is more than one batch
    expected = pooled(dataclasses.replace(model, num_threads=1), sequences)
    rows = pooled(model, sequences)
    assert rows.shape == (len(SEQLENS), model.spec.hidden_size)
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    assert np.abs(expected - np.roll(expected, 1, axis=0)).max() > 0.01  # rows differ, so their order is tested
    some = [3, 11, 0]
    np.testing.assert_allclose(pooled(model, sequences, some), expected[some], atol=1e-5)


def test_types_of_tokens_reach_the_model(model: Model, sequences: Sequences) -> None:
    types = [np.full(len(sequence), number % 2, np.int32) for number, sequence in enumerate(sequences)]
    plain = pooled(model, sequences)
    answers = GateAnswers(model, GateTexts(sequences, types, len(sequences)))(range(len(SEQLENS)))
    typed = np.concatenate(answers[OutputKind.POOLED])
    np.testing.assert_allclose(typed[::2], plain[::2], atol=1e-5)
    assert np.abs(typed[1::2] - plain[1::2]).max(axis=1).min() > 1e-3


def test_each_core_has_an_engine_of_one_thread(
    model: Model, sequences: Sequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_answers, "_NUM_TOKENS_ON_CPU", 64)
    num_threads: list[int] = []
    batches: list[list[int]] = []

    def assembled(made: Model, **others: Any) -> FusedEngine:
        num_threads.append(made.num_threads)
        return assemble(made, **others)

    def computed(engine: Engine, batch: Batch) -> Results | EngineError:
        batches.append(np.diff(batch.cu_seqlens).tolist())
        return compute(engine, batch)

    monkeypatch.setattr(gate_answers, "assemble", assembled)
    monkeypatch.setattr(gate_answers, "compute", computed)
    pooled(model, sequences)
    assert num_threads == [1, 1, 1]
    assert sorted(seqlen for batch in batches for seqlen in batch) == sorted(SEQLENS)
    assert all(sum(batch) <= 64 for batch in batches)


def test_one_that_fails_fails_all(model: Model, sequences: Sequences) -> None:
    sequences[4][0] = VOCAB_SIZE
    with pytest.raises(ModelError, match="can't run the model"):
        pooled(model, sequences)


class Ragged:
    """An engine whose rows say whose they are: of a text, of its tokens, or of its entries, as many as its first id."""

    limits = EngineLimits(max_num_tokens=64, max_num_seqs=3, max_seqlen=64)

    def __init__(self, model: Model) -> None:
        self.info = model.chosen.folder.info(name="m", engine="", reason="", dtype="", device="", notes=())

    def compute_alone(self, batch: Batch) -> Results:
        firsts = batch.token_ids[batch.cu_seqlens[:-1]]
        entries = np.repeat(np.stack([firsts, firsts], axis=1), firsts % 5, axis=0)
        ends = np.cumsum([0, *(firsts % 5)], dtype=np.int32)
        return {
            OutputKind.POOLED: Rows(firsts[:, None].astype(np.float32)),
            OutputKind.MULTI_VECTOR: Rows(batch.token_ids[:, None].astype(np.float32), batch.cu_seqlens),
            OutputKind.SPARSE: Rows(entries.astype(np.float32), ends),
        }


def test_rows_of_all_kinds_come_text_by_text(
    model: Model, sequences: Sequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_answers, "assemble", lambda made, **_: Ragged(made))
    heads = (TokenWeights(unused_ids=()), TokenVectors(steps=(), dimensions=1, normalize=False))
    folder = dataclasses.replace(model.chosen.folder, heads=heads)
    several = dataclasses.replace(model, chosen=dataclasses.replace(model.chosen, folder=folder))
    numbers = [5, 2, 0, 7]
    answers = GateAnswers(several, GateTexts(sequences, None, len(sequences)))(numbers)
    assert answers.keys() == {OutputKind.POOLED, OutputKind.SPARSE, OutputKind.MULTI_VECTOR}
    for at, number in enumerate(numbers):
        sequence = sequences[number]
        np.testing.assert_array_equal(answers[OutputKind.POOLED][at], [[sequence[0]]])
        np.testing.assert_array_equal(answers[OutputKind.MULTI_VECTOR][at][:, 0], sequence)
        np.testing.assert_array_equal(answers[OutputKind.SPARSE][at], np.full((sequence[0] % 5, 2), sequence[0]))


LENGTHS = (5, 17, 1, 30, 9)


@pytest.mark.parametrize("family", ["bert", "qwen3", "llama", "gemma3_text, bidirectional", "modernbert"])
def test_rows_in_fp8_are_near(family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    fused, sequences = load_fused(folder), arbitrary(LENGTHS)
    plain = fused.token_rows(sequences)
    switch = QuantizableLinears(fused.weights.linears, plain=source_of(folder).linear)
    names = [name for name in fused.weights.linears if name.startswith("layers.")]
    switch.set(names)
    quantized = fused.token_rows(sequences)
    assert 0.95 < fidelity(quantized, plain).median_cosine < 0.99999  # random rows of 32 numbers: little evens out
    ends = np.cumsum(LENGTHS)
    for pooling, tokens in (("cls", ends - LENGTHS), ("last", ends - 1)):
        # The same numbers, but products of other shapes may differ in the last bit, and then round to another FP8.
        assert fidelity(fused.pooled(sequences, pooling), quantized[tokens]).min_cosine > 0.9995
    switch.set([])
    assert all(isinstance(linear, PlainLinear) for linear in fused.weights.linears.values())
    np.testing.assert_array_equal(fused.token_rows(sequences), plain)


LARGE, SMALL = MIN_LINEAR_PARAMETERS, MIN_LINEAR_PARAMETERS - 1
NAMES = [f"layers.{layer}.{kind}" for layer in range(3) for kind in ("qkv", "o", "gate_up", "down")]


@pytest.mark.parametrize(
    ("requested", "capability", "size", "is_fp8"),
    [
        ("none", (9, 0), LARGE, False),
        ("none", None, LARGE, False),
        ("auto", (9, 0), LARGE, True),
        ("auto", (8, 9), LARGE, True),
        ("auto", (10, 0), LARGE, True),
        ("auto", (12, 0), SMALL, False),
        ("auto", (8, 6), LARGE, False),
        ("auto", (8, 0), LARGE, False),
        ("auto", None, LARGE, False),
        ("fp8", (9, 0), SMALL, True),
        ("fp8", None, SMALL, True),
    ],
)
def test_decisions(requested: str, capability: tuple[int, int] | None, size: int, is_fp8: bool) -> None:
    decided, reason = decide(requested, capability=capability, num_linear_parameters=size)
    assert decided is is_fp8
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("requested", "capability", "words"),
    [("fp8", (8, 6), r"8\.9 or more, and this one has 8\.6"), ("int8", (9, 0), "int8 is not for the fused engine")],
)
def test_impossible_wishes(requested: str, capability: tuple[int, int], words: str) -> None:
    with pytest.raises(ModelError, match=f"--quantization {requested}") as error:
        decide(requested, capability=capability, num_linear_parameters=LARGE)
    assert error.match(words)


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, ("qkv", "o", "gate_up", "down")),
        ({"hidden_size": 1008}, ("qkv", "gate_up", "down")),
        ({"intermediate_size": 3080}, ("qkv", "o")),
        ({"hidden_size": 1032}, ()),
        ({"num_kv_heads": 1, "head_dim": 24}, ("o", "gate_up", "down")),  # keys would begin between multiples of 16
        ({"num_heads": 1, "num_kv_heads": 1, "head_dim": 24}, ("gate_up", "down")),
    ],
)
def test_eligible_layers(changes: dict[str, Any], kinds: tuple[str, ...]) -> None:
    names = eligible(dataclasses.replace(SPEC, **changes))
    assert names == tuple(f"layers.{layer}.{kind}" for layer in range(2) for kind in kinds)


def test_steps_go_by_kind_then_by_sensitivity() -> None:
    assert steps_back(NAMES, {"layers.0": 1.0, "layers.1": 3.0, "layers.2": 2.0}) == [
        ("layers.1.o", "layers.1.down"),
        ("layers.2.o", "layers.2.down"),
        ("layers.0.o", "layers.0.down"),
        ("layers.1.qkv", "layers.1.gate_up"),
        ("layers.2.qkv", "layers.2.gate_up"),
        ("layers.0.qkv", "layers.0.gate_up"),
    ]


def test_layers_that_are_bad_alone_go_whole_and_first() -> None:
    steps = steps_back(NAMES, dict.fromkeys(by_layer(NAMES), 0.0), frozenset({"layers.2"}))
    assert steps[:3] == [
        ("layers.2.o", "layers.2.down"),
        ("layers.2.qkv", "layers.2.gate_up"),
        ("layers.0.o", "layers.0.down"),
    ]
    assert sorted(name for step in steps for name in step) == sorted(NAMES)


def test_steps_name_only_what_is_quantized() -> None:
    steps = steps_back(["layers.0.qkv", "layers.0.gate_up", "layers.1.down"], {"layers.0": 0.0, "layers.1": 0.0})
    assert steps == [("layers.1.down",), ("layers.0.qkv", "layers.0.gate_up")]


def test_how_many_parameters_count() -> None:
    """Those of Qwen3-Embedding-0.6B's linear layers."""
    assert dataclasses.replace(SPEC, layers=SPEC.layers * 14).num_linear_parameters == 440_401_920

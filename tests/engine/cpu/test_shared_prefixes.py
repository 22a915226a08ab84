"""What sequences of a batch begin with alike is computed once, where a model's rows do not depend on what follows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import AutoModel, Lfm2Config

from engine.cpu import converted
from engine.cpu.converted import Converted
from engine.cpu.minibatch import ATTENTION_MASK, INPUT_IDS, cut, padded
from engine.cpu.openvino import Executor
from engine.cpu.selftest import shares_prefixes
from engine.cpu.shared_prefixes import GROUP_TOKENS, PLACES, UNIQUE
from engine.model.tasks import AnswerScore, Head, SequenceScores, TokenScores
from engine.selftest.comparison import batch_of
from engine.types import Batch, OutputKind
from tests.engine.cpu.engines import load, load_with_heads
from tests.engine.engines import difference, results
from tests.engine.tiny_models import (
    GENERATING,
    SCORING_SEQUENCES,
    SCORING_TOKENS,
    Reference,
    WholeReference,
    arbitrary,
    batch,
    save,
    save_whole,
)

A, B, C, *TAILS = arbitrary((31, 19, 12, 1, 9, 4, 17, 2, 8))
# Two families with another prefix each, a chain, one that is the beginning of the next, and two that share nothing.
SEQUENCES = [A, *(A[:20] + tail for tail in TAILS), B, B[:18] + A[:11], B[:18] + A[:7], C, A[:5], A[:5] + B[:9]]
SHARED = [0, 20, 20, 20, 20, 20, 20, 0, 18, 24, 0, 0, 5]


def sharing(sequences: Sequence[Sequence[int]], shared: Sequence[int], **others: Any) -> Batch:
    return replace(batch(sequences), shared=np.array(shared, np.int32), **others)


@pytest.mark.parametrize("family", ["qwen3", "qwen3 with a window", "gpt2", "gemma3_text"])
def test_rows_are_those_of_each_text_alone(family: str, tmp_path: Path) -> None:
    reference = Reference(save(family, tmp_path))
    loaded = load(tmp_path)
    found = results(loaded, sharing(SEQUENCES, SHARED, outputs=OutputKind.POOLED | OutputKind.TOKENS))
    apart = results(loaded, batch(SEQUENCES))
    wrong = results(loaded, sharing(SEQUENCES, [*SHARED[:10], 9, *SHARED[11:]]))  # which C does not
    loaded.close()
    assert loaded.info.shares_prefixes
    assert loaded.limits.group_tokens > 0
    rows = [reference.token_rows(sequence) for sequence in SEQUENCES]
    pooled = np.stack([each.mean(axis=0) for each in rows])
    assert difference(found[OutputKind.POOLED].values, pooled) <= 1e-5
    assert difference(found[OutputKind.TOKENS].values, np.concatenate(rows)) <= 1e-5
    assert difference(apart[OutputKind.POOLED].values, pooled) <= 1e-5
    changed = np.abs(wrong[OutputKind.POOLED].values - pooled).max(axis=1) > 1e-2
    assert np.flatnonzero(changed).tolist() == [SEQUENCES.index(C)]


@pytest.mark.parametrize(
    ("kind", "head", "output"),
    [
        (GENERATING, AnswerScore(yes_id=7, no_id=9), OutputKind.LOGITS),
        (SCORING_SEQUENCES, SequenceScores(labels=("a", "b", "c")), OutputKind.LOGITS),
        (SCORING_TOKENS, TokenScores(labels=("a", "b", "c")), OutputKind.TOKEN_LOGITS),
    ],
)
def test_scores_are_those_of_each_text_alone(kind: Any, head: Head, output: OutputKind, tmp_path: Path) -> None:
    labels = {} if kind is GENERATING else {"num_labels": 3}
    save_whole("qwen3", tmp_path, kind, **labels)
    reference = WholeReference(tmp_path, kind)
    loaded = load_with_heads(tmp_path, (head,))
    found = results(loaded, sharing(SEQUENCES, SHARED, outputs=output))[output].values
    loaded.close()
    assert loaded.info.shares_prefixes
    scores = [reference.scores(sequence) for sequence in SEQUENCES]
    if isinstance(head, AnswerScore):
        scores = [each[-1:, 7] - each[-1:, 9] for each in scores]
    expected = np.concatenate(scores).reshape(found.shape)
    assert np.ptp(expected, axis=0).min() > 0.1
    assert difference(found, expected) <= 1e-5


def test_families_of_one_batch_on_several_threads(tmp_path: Path) -> None:
    """Each gets a share of the documents, and the rows stay where they belong."""
    reference = Reference(save("qwen3", tmp_path))
    documents = [A[:20] + tail for tail in arbitrary([(7 * number) % 31 + 1 for number in range(40)])]
    shared = [0, *[20] * 39]
    one = sharing(documents, shared)
    assert len(cut(one, num_streams=2, max_seqlen=64)) >= 2
    loaded = load(tmp_path)
    found = results(loaded, one)[OutputKind.POOLED].values
    giving_way = results(loaded, replace(one, gives_way=True))[OutputKind.POOLED].values
    loaded.close()
    expected = reference.pooled(documents, "mean")
    assert difference(found, expected) <= 1e-5
    assert difference(giving_way, expected) <= 1e-5


@pytest.mark.parametrize("family", ["bert", "modernbert", "llama, bidirectional", "gemma2"])
def test_others_compute_all_that_they_are_sent(family: str, tmp_path: Path) -> None:
    """They look ahead, or their attention does more than that of unique tokens can."""
    reference = Reference(save(family, tmp_path))
    loaded = load(tmp_path)
    found = results(loaded, sharing(SEQUENCES, SHARED))[OutputKind.POOLED].values
    loaded.close()
    assert not loaded.info.shares_prefixes
    assert loaded.limits.group_tokens == 0
    assert difference(found, reference.pooled(SEQUENCES, "mean")) <= 1e-5


def test_layers_that_mix_neighbours_do_not_share(tmp_path: Path) -> None:
    """LFM2's convolutions look back along the row, in which other sequences stand."""
    config = Lfm2Config(
        vocab_size=120,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,
        layer_types=["conv", "full_attention", "conv"],
        pad_token_id=0,
    )
    AutoModel.from_config(config).save_pretrained(tmp_path)  # type: ignore[no-untyped-call]
    loaded = load(tmp_path)
    found = results(loaded, sharing(SEQUENCES, SHARED))[OutputKind.POOLED].values
    loaded.close()
    assert not loaded.info.shares_prefixes
    assert difference(found, Reference(tmp_path).pooled(SEQUENCES, "mean")) <= 1e-5


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_the_next_start_knows_it(quantization: str, tmp_path: Path) -> None:
    folder, cache = save("qwen3", tmp_path / "model"), str(tmp_path / "cache")
    rows = []
    for _ in range(2):
        loaded = load(folder, cache_dir=cache, quantization=quantization)
        assert loaded.info.shares_prefixes
        for each in (sharing(SEQUENCES, SHARED), batch(SEQUENCES)):
            rows.append(results(loaded, each)[OutputKind.POOLED].values)
        loaded.close()
    assert len(list((tmp_path / "cache" / "compiled").iterdir())) == 1
    assert difference(rows[0], rows[1]) <= (1e-5 if quantization == "none" else 1e-2)
    assert difference(rows[2], rows[0]) == 0


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_the_self_test_compares_rows(*, looks_ahead: bool) -> None:
    """A row has a token's id, its place, and the ids before it or all of its sequence."""
    sequences = [np.array(ids, np.int32) for ids in arbitrary((40, 30, 9))]
    known = Converted(
        references=(converted.Reference(sequences, []),),
        of_texts=(),
        computed_by="",
        notes=(),
        num_products=0,
        dimensions=8,
        pad_id=0,
    )

    def run(inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        ids = np.where(inputs[ATTENTION_MASK] == 1, inputs[INPUT_IDS], 0)
        sums = ids.cumsum(axis=1) if not looks_ahead else np.broadcast_to(ids.sum(axis=1, keepdims=True), ids.shape)
        padded_rows = np.stack([ids**power % 97 for power in range(7)] + [sums], axis=-1)
        rows = padded_rows.reshape(-1, 8)[inputs[UNIQUE][0]][inputs[PLACES]]
        return np.asarray(rows, np.float32)

    executor = Executor(frozenset((INPUT_IDS, ATTENTION_MASK, UNIQUE, PLACES)), (run,), 1, None, 2)
    assert shares_prefixes(executor, known, dtype="float32") is not looks_ahead


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 60)), min_size=1, max_size=60), st.integers(1, 4))
def test_all_tokens_are_computed_once(sizes: list[tuple[int, int]], num_streams: int) -> None:
    """Each token of each mini-batch finds one that is equal to it, with all that is before it."""
    sequences: list[NDArray[np.int32]] = []
    shared = [0]
    for number, (seqlen, most) in enumerate(sizes):
        last = sequences[-1] if sequences else np.empty(0, np.int32)
        alike = min(most, len(last), seqlen - 1)
        sequences.append(np.append(last[:alike], np.arange(seqlen - alike) + 100 * (number + 1)).astype(np.int32))
        shared.append(alike)
    one = replace(batch_of(sequences), shared=np.array([0, *shared[2:]], np.int32))
    mini_batches = cut(one, num_streams=num_streams, max_seqlen=90)
    found = np.concatenate([mini_batch.numbers for mini_batch in mini_batches])
    assert sorted(found.tolist()) == list(range(len(sequences)))
    for mini_batch in mini_batches:
        inputs = padded(one, mini_batch, ("input_ids", UNIQUE, PLACES), pad_id=0)
        unique, places, is_token = inputs[UNIQUE][0], inputs[PLACES], mini_batch.is_token
        row, position = np.divmod(unique[places], is_token.shape[1])
        for line, number in enumerate(mini_batch.numbers.tolist()):
            for at in range(len(sequences[number])):
                assert position[line, at] == at
                other = sequences[mini_batch.numbers[row[line, at]]]
                assert (other[: at + 1] == sequences[number][: at + 1]).all()
        if mini_batch.group is not None:
            assert len(unique) - mini_batch.group.num_unique in range(32)
            assert mini_batch.group.num_unique <= 1.25 * GROUP_TOKENS + 90


@pytest.mark.parametrize(
    ("prefix", "num_seqs", "own", "num_streams", "most"),
    [(300, 30, 30, 4, 2100), (600, 20, 60, 4, 3600), (1000, 60, 2, 2, 8200), (60, 1000, 1, 1, 1500)],
)
def test_long_prefixes_are_shared_on_several_streams_and_no_group_is_too_wide(
    prefix: int, num_seqs: int, own: int, num_streams: int, most: int
) -> None:
    shared = [0] + [prefix] * (num_seqs - 1)
    given = sharing([[1] * (prefix + own)] * num_seqs, shared)
    found = cut(given, num_streams=num_streams, max_seqlen=2048)
    assert sum(each.group.num_unique for each in found if each.group) <= most
    assert all(each.group and each.index.size <= 4.5 * GROUP_TOKENS for each in found)  # padded
    assert sorted(np.concatenate([each.numbers for each in found])) == list(range(num_seqs))

"""Architectures of many kinds, compiled: their rows equal transformers' own, one sequence at a time."""

from pathlib import Path

import numpy as np
import pytest

from engine.cpu.openvino import import_openvino
from engine.types import Batch, ModelError, OutputKind
from tests.engine.cpu.engines import difference, load, pooled, results
from tests.engine.tiny_models import FAMILIES, HIDDEN_SIZE, Reference, arbitrary, batch, save
from tests.tiers import full_but

SEQLENS = (5, 17, 1, 30, 9, 9, 13)
COMMON = ("bert", "qwen3 with a window")  # each takes a second or two
REFUSED = ("gpt_oss", "xlm", "flaubert")  # openvino can't convert them


@pytest.mark.parametrize("family", full_but(COMMON, sorted(set(FAMILIES) - set(REFUSED))))
def test_a_batch_equals_one_sequence_at_a_time(family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    sequences = arbitrary(SEQLENS)
    reference = Reference(folder)
    loaded = load(folder, pooling="mean")
    both = results(loaded, Batch("m", OutputKind.POOLED | OutputKind.TOKENS, *_arrays(sequences)))
    alone = np.concatenate([pooled(loaded, [sequence]) for sequence in sequences])
    loaded.close()

    tolerance = 5e-4 if family == "mobilebert" else 1e-5  # its values go into the hundreds, and cancel each other
    rows, tokens = both[OutputKind.POOLED], both[OutputKind.TOKENS]
    assert difference(rows.values, reference.pooled(sequences, "mean")) <= tolerance
    assert difference(alone, rows.values) <= tolerance
    expected = np.concatenate([reference.token_rows(sequence) for sequence in sequences])
    assert difference(tokens.values, expected) <= tolerance
    assert tokens.offsets is not None
    assert tokens.offsets.tolist() == np.cumsum([0, *SEQLENS]).tolist()


def _arrays(sequences: list[list[int]]) -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], ...]:
    one = batch(sequences)
    return one.token_ids, one.cu_seqlens


@pytest.mark.parametrize("pooling", ["cls", "last"])
def test_each_pooling(pooling: str, tmp_path: Path) -> None:
    folder = save("bert", tmp_path / "model")
    sequences = arbitrary(SEQLENS)
    loaded = load(folder, pooling=pooling)
    rows = pooled(loaded, sequences)
    loaded.close()
    assert difference(rows, Reference(folder).pooled(sequences, pooling)) <= 1e-5


@pytest.mark.parametrize("family", ["roberta", "mpnet"])
def test_a_padding_token_that_a_text_spells_out(family: str, tmp_path: Path) -> None:
    """`<pad>` in a text becomes the padding id, which RoBERTa and its kin leave out when they count positions."""
    folder = save(family, tmp_path / "model")
    sequences = [[5, 1, 6], [7, 8, 1, 1, 9], [1, 10], [11, 12, 13, 14]]
    loaded = load(folder, pooling="last")
    rows = pooled(loaded, sequences)
    loaded.close()
    assert difference(rows, Reference(folder).pooled(sequences, "last")) <= 1e-5


def test_token_types_are_used_where_the_model_has_them(tmp_path: Path) -> None:
    loaded = load(save("bert", tmp_path / "model"))
    sequences = arbitrary([6, 4, 6])
    types = [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    none, zeros, some = (
        results(loaded, batch(sequences, given))[OutputKind.POOLED].values for given in (None, [0] * 16, types)
    )
    loaded.close()
    assert difference(zeros, none) == 0
    assert difference(some[1], none[1]) <= 1e-6
    assert difference(some[[0, 2]], none[[0, 2]]) > 0.01


def test_bfloat16_is_what_it_says(tmp_path: Path) -> None:
    """Or is refused, where the CPU does not have it."""
    folder = save("bert", tmp_path / "model")
    if "BF16" not in import_openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        with pytest.raises(ModelError, match="bfloat16 arithmetic"):
            load(folder, dtype="bfloat16")
        return
    loaded = load(folder, dtype="bfloat16")
    rows = pooled(loaded, arbitrary(SEQLENS))
    loaded.close()
    assert loaded.info.dtype == "bfloat16"
    assert 1e-5 < difference(rows, Reference(folder).pooled(arbitrary(SEQLENS), "mean")) < 0.05


@pytest.mark.parametrize("family", full_but(("gpt_oss",), REFUSED))
def test_what_cannot_be_converted_is_refused(family: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"^openvino can't convert '{family}': .{{1,300}}$"):
        load(save(family, tmp_path / "model"))


def test_what_is_said_of_a_model(tmp_path: Path) -> None:
    loaded = load(save("roberta", tmp_path / "model"), pooling="cls", max_num_tokens=10)
    loaded.close()
    info, limits = loaded.info, loaded.limits
    assert (info.name, info.engine, info.reason, info.architecture) == ("m", "openvino", "asked", "roberta")
    assert (info.dimensions, info.max_seqlen, info.pooling, info.dtype) == (HIDDEN_SIZE, 62, "cls", "float32")
    assert info.outputs == OutputKind.POOLED | OutputKind.TOKENS
    assert "self-test" in info.notes[0]
    assert (limits.max_num_tokens, limits.max_num_seqs, limits.streams, limits.depth) == (62, 64, 1, 2)

"""Architectures of many kinds: rows of texts and tokens, in a batch and alone, are transformers' of one sequence."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.cpu.openvino import import_openvino
from engine.types import Engine, ModelError, OutputKind
from tests.engine import engines
from tests.engine.engines import difference, results, rows
from tests.engine.tiny_models import FAMILIES, HIDDEN_SIZE, PADDED, VOCAB_SIZE, Reference, arbitrary, batch, save
from tests.tiers import full_but

SEQLENS = (5, 17, 1, 30, 9, 9, 13)  # more in all than a sequence may have
TRANSFORMERS, OPENVINO = "transformers", "openvino"
COMPILED = ("bert", "qwen3 with a window")  # each takes a second or two
REFUSED = ("gpt_oss", "xlm", "flaubert")  # openvino can't convert them
TOLERANCE = 1e-5
BY_BITS = ("bert", "qwen3", "gemma3_text, bidirectional", "mpnet")  # of which neighbours change hardly a bit
BOTH = OutputKind.POOLED | OutputKind.TOKENS


def load(engine: str, folder: Path, **others: Any) -> Engine:
    return engines.load(engine, folder, **{"pooling": "mean", "max_num_tokens": 256, "max_num_seqs": 16, **others})


def each(*families: str, compiled: Iterable[str] = COMPILED) -> pytest.MarkDecorator:
    """These families by both engines; openvino converts all but `compiled` in the full tier alone."""
    by_openvino = [(OPENVINO, family) for family in families if family not in REFUSED]
    kept = [(OPENVINO, family) for family in compiled]
    cases = [*((TRANSFORMERS, family) for family in families), *full_but(kept, by_openvino)]
    return pytest.mark.parametrize(("engine", "family"), cases)


@pytest.mark.holds("Every token gets its own row")
@each(*FAMILIES)
def test_a_batch_equals_one_sequence_at_a_time(engine: str, family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    sequences, reference = arbitrary(SEQLENS), Reference(folder)
    loaded = load(engine, folder)
    both = results(loaded, dataclasses.replace(batch(sequences), outputs=BOTH))
    tokens_alone = rows(loaded, batch(sequences), OutputKind.TOKENS)
    turned = rows(loaded, batch(sequences[::-1]))[::-1]
    alone = np.concatenate([rows(loaded, batch([sequence])) for sequence in sequences])
    loaded.close()
    if engine == TRANSFORMERS:
        assert loaded.info.notes[0].startswith("padded" if family in PADDED else "packed"), loaded.info.notes
        assert loaded.info.is_padded == (family in PADDED)
    pooled, tokens = both[OutputKind.POOLED], both[OutputKind.TOKENS]
    assert difference(pooled.values, reference.pooled(sequences, "mean")) <= TOLERANCE
    for found in (turned, alone):
        assert difference(found, pooled.values) <= (1e-6 if engine == TRANSFORMERS and family in BY_BITS else TOLERANCE)
    expected = np.concatenate([reference.token_rows(sequence) for sequence in sequences])
    assert difference(tokens.values, expected) <= TOLERANCE
    assert difference(tokens_alone, tokens.values) <= TOLERANCE
    assert tokens.offsets is not None
    assert tokens.offsets.tolist() == np.cumsum([0, *SEQLENS]).tolist()


@pytest.mark.parametrize("engine", [TRANSFORMERS, OPENVINO])
def test_bfloat16_is_what_it_says(engine: str, tmp_path: Path) -> None:
    """Or is refused, where openvino's CPU does not have it. Rows are handed out in float32 all the same."""
    folder = save("bert", tmp_path / "model")
    known = import_openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if engine == OPENVINO and "BF16" not in known:
        with pytest.raises(ModelError, match="bfloat16 arithmetic"):
            load(engine, folder, dtype="bfloat16")
        return
    loaded = load(engine, folder, dtype="bfloat16")
    found, tokens = rows(loaded, batch(arbitrary(SEQLENS))), rows(loaded, batch(arbitrary([3, 5])), OutputKind.TOKENS)
    loaded.close()
    assert loaded.info.dtype == "bfloat16"
    assert tokens.shape == (8, HIDDEN_SIZE)
    assert 1e-5 < difference(found, Reference(folder).pooled(arbitrary(SEQLENS), "mean")) < 0.05


@pytest.mark.parametrize("family", full_but(("gpt_oss",), REFUSED))
def test_what_cannot_be_converted_is_refused(family: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"^openvino can't convert '{family}': .{{1,300}}$"):
        load(OPENVINO, save(family, tmp_path / "model"))


@pytest.mark.parametrize(
    ("engine", "most", "limits"), [(TRANSFORMERS, 256, (256, 16, 62, 1, 2)), (OPENVINO, 10, (62, 16, 62, 1, 2))]
)
def test_what_is_said_of_a_model(engine: str, most: int, limits: tuple[int, ...], tmp_path: Path) -> None:
    loaded = load(engine, save("roberta", tmp_path / "model"), pooling="cls", max_num_tokens=most)
    loaded.close()
    info, found = loaded.info, loaded.limits
    assert (info.name, info.engine, info.reason, info.architecture) == ("m", engine, "asked", "roberta")
    assert (info.dimensions, info.vocab_size, info.max_seqlen) == (HIDDEN_SIZE, VOCAB_SIZE, 62)
    assert (info.pooling, info.normalize, info.dtype, info.device) == ("cls", False, "float32", "cpu")
    assert info.outputs == BOTH
    assert "self-test" in info.notes[0]
    assert (found.max_num_tokens, found.max_num_seqs, found.max_seqlen, found.streams, found.depth) == limits

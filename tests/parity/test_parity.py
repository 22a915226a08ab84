"""Every architecture, for everything it is served for, by every engine: as its own library computes a text alone.

What a cell of engine.model.coverage says of engines is held here, refusals too. Batches are the same each time, but
for the nightly run's: there a test that fails shows its seed.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.fused.adapters import ADAPTERS
from engine.model.coverage import ARCHITECTURES, Architecture, Use
from engine.model.model_folder import read
from engine.types import Engine, ModelError, OutputKind
from tests.engine.engines import difference, load
from tests.engine.fused.model.models import load_fused
from tests.parity.architectures import BGE_M3, NUM_POSITIONS, STATIC
from tests.parity.engines import compute
from tests.parity.folders import num_types, save, tiny_of
from tests.parity.references import Reference
from tests.parity.texts import SPECIAL_IDS, Text, packed, random_texts, with_expansion, with_prompts

pytestmark = pytest.mark.holds("What a model is for")

TOLERANCE = 1e-5  # of the largest value, where that is above 1
COMMON = ("BERT", "ModernBERT", "Qwen3")
EVERY_USE = ("BERT", BGE_M3)
SEED = 7


def cases() -> Iterator[tuple[Architecture, Use, str]]:
    """Each engine on each cell of the table."""
    for row in ARCHITECTURES:
        for use in row.uses:
            for engine in ("static",) if row.name == STATIC else ("transformers", "openvino"):
                yield row, use, engine


def param(row: Architecture, use: Use, engine: str) -> Any:
    """Heads are the same on any backbone, and what is compiled for another architecture differs little."""
    is_common = row.name in EVERY_USE or (row.name in COMMON and use in (Use.EMBED, Use.GENERATIVE_RERANK))
    is_own = engine != "openvino" and use is Use.EMBED
    marks = [] if is_common or is_own else [pytest.mark.full]
    return pytest.param(row, use, engine, marks=marks, id=f"{row.name}-{use}-{engine}".replace(" ", "_"))


EACH_CASE = pytest.mark.parametrize(("row", "use", "engine"), [param(*case) for case in cases()])


@pytest.mark.holds("Every output equals the model's own library")
@EACH_CASE
def test_a_batch_equals_the_library_on_one_text_at_a_time(
    row: Architecture, use: Use, engine: str, tmp_path: Path
) -> None:
    check_case(row, use, engine, tmp_path, seed=SEED)


@pytest.mark.nightly
@EACH_CASE
def test_so_does_a_random_batch(row: Architecture, use: Use, engine: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    check_case(row, use, engine, tmp_path, seed=seed)


def check_case(row: Architecture, use: Use, engine: str, tmp_path: Path, *, seed: int) -> None:
    folder = save(row.name, use, tmp_path / "model")
    if engine == "openvino" and use in row.not_openvino:
        with pytest.raises(ModelError, match="openvino can't convert 'gpt_oss'"):
            load(engine, folder)
        return
    # A decoder's classifier may need a template, and here it needs none.
    loaded = load(engine, folder, template="none" if use is Use.RERANK else None)
    assert engine != "transformers" or loaded.info.notes[0].startswith(row.transformers), loaded.info.notes
    try:
        check(loaded, Reference(row.name, use, folder), row, use, seed=seed)
    finally:
        loaded.close()


def check(engine: Engine, reference: Reference, row: Architecture, use: Use, *, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    padding = None if row.name == STATIC else tiny_of(row.name).own.settings["pad_token_id"]  # a text may spell it out
    longest = min(engine.limits.max_seqlen, NUM_POSITIONS)  # static embeddings have no limit
    texts = random_texts(numbers, longest, num_types=num_types(row.name), last_id=padding)
    batches = [texts, texts[:1]]
    if row.name == BGE_M3:
        batches.append([Text(SPECIAL_IDS * 8), *texts])  # which have no weight
    if OutputKind.POOLED in engine.info.outputs and row.name != STATIC:
        batches.append(with_prompts(numbers, texts))
    elif use is Use.LATE_INTERACTION:
        batches.append(with_expansion(numbers, texts))
    for batch in batches:
        check_batch(engine, reference, batch)


def check_batch(engine: Engine, reference: Reference, texts: Sequence[Text]) -> None:
    expected = [reference(text) for text in texts]
    outputs = OutputKind(sum(expected[0]))
    for actual, own, text in zip(compute(engine, texts, outputs), expected, texts, strict=True):
        for kind, values in own.items():
            assert difference(actual[kind], values) <= TOLERANCE, (kind, text)


def test_the_table_says_which_architectures_fused_knows() -> None:
    for row in ARCHITECTURES:
        if row.name != BGE_M3:  # whose heads are another engine's
            assert row.is_fused == (row.model_type in ADAPTERS), row.name


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ARCHITECTURES if row.is_fused])
def test_fused_equals_the_library_on_one_text_at_a_time(row: Architecture, tmp_path: Path) -> None:
    """Computed in float32 by what its kernels mean; they are held against that elsewhere."""
    folder = save(row.name, Use.EMBED, tmp_path / "model")
    texts = random_texts(np.random.default_rng(SEED), read(folder).max_seqlen, num_types=num_types(row.name))
    reference = Reference(row.name, Use.EMBED, folder)
    expected = np.concatenate([reference(text)[OutputKind.TOKENS] for text in texts])
    types = packed(texts, OutputKind.TOKENS).token_type_ids
    rows = load_fused(folder).token_rows([text.ids for text in texts], None if types is None else types.tolist())
    assert difference(rows, expected) <= TOLERANCE

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
from engine.model.coverage import ARCHITECTURES, FUSED_BESIDES, Architecture, Use
from engine.types import Engine, ModelError, OutputKind
from tests.engine.engines import difference, load
from tests.engine.folder_files import change
from tests.parity.architectures import BGE_M3, NUM_POSITIONS, STATIC
from tests.parity.engines import compute
from tests.parity.folders import QUERY_LENGTH, num_types, pooling_in, save, save_pooling, tiny_of
from tests.parity.references import Reference
from tests.parity.texts import SPECIAL_IDS, Text, random_texts, with_expansion, with_prompts

pytestmark = pytest.mark.holds("What a model is for")

TOLERANCE = 1e-5  # of the largest value, where that is above 1
COMMON = ("BERT", "ModernBERT", "Qwen3")
EVERY_USE = ("BERT", BGE_M3)
FUSED_POOLINGS = ("cls", "mean", "lasttoken")  # that this engine has
SEED = 7


def cases() -> Iterator[tuple[Architecture, Use, str]]:
    """Each engine on each cell of the table."""
    for row in ARCHITECTURES:
        for use in row.uses:
            for engine in engines_of(row):
                yield row, use, engine


def engines_of(row: Architecture) -> tuple[str, ...]:
    """Those that a cell of this row names, and those that must refuse it."""
    if row.name == STATIC:
        return ("static",)
    return ("transformers", "openvino", *(("fused",) if row.is_fused else ()))


def param(row: Architecture, use: Use, engine: str) -> Any:
    """Heads are the same on any backbone, and what is compiled for another architecture differs little."""
    own_uses = (Use.EMBED, Use.GENERATIVE_RERANK, *((Use.RERANK,) if engine == "fused" else ()))
    is_common = row.name in EVERY_USE or (row.name in COMMON and use in own_uses)
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


@pytest.mark.parametrize("engine", ["transformers", "fused"])
def test_a_template_that_is_asked_for(engine: str, tmp_path: Path) -> None:
    """Gemma 2 squeezes the scores of its vocabulary."""
    row = next(row for row in ARCHITECTURES if row.name == "Gemma 2")
    folder = save(row.name, Use.GENERATIVE_RERANK, tmp_path / "model")
    loaded = load(engine, folder, task="rerank", template="qwen3-reranker")
    try:
        check(loaded, Reference(row.name, Use.GENERATIVE_RERANK, folder), row, Use.GENERATIVE_RERANK, seed=SEED)
    finally:
        loaded.close()


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
    if engine == "fused":
        fit_to_fused(folder, row, use)
    # A decoder's classifier may need a template, and here it needs none.
    loaded = load(engine, folder, template="none" if use is Use.RERANK else None)
    assert engine != "transformers" or loaded.info.notes[0].startswith(row.transformers), loaded.info.notes
    try:
        check(loaded, Reference(row.name, use, folder), row, use, seed=seed)
    finally:
        loaded.close()


def fit_to_fused(folder: Path, row: Architecture, use: Use) -> None:
    """It refuses some poolings, whatever the architecture, and windows that are shorter than a query."""
    if (use is Use.EMBED or row.name == BGE_M3) and pooling_in(folder) not in FUSED_POOLINGS:
        save_pooling(folder, "mean")
    if row.name == "ModernBERT" and use is Use.LATE_INTERACTION:
        change(folder / "config.json", local_attention=2 * QUERY_LENGTH)


def check(engine: Engine, reference: Reference, row: Architecture, use: Use, *, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    padding = None if row.name == STATIC else tiny_of(row.name).own.settings["pad_token_id"]  # a text may spell it out
    longest = min(engine.limits.max_seqlen, NUM_POSITIONS)  # static embeddings have no limit
    texts = random_texts(numbers, longest, num_types=num_types(row.name), last_id=padding)
    batches = [texts, texts[:1]]
    if row.name == BGE_M3:
        batches.append([Text(SPECIAL_IDS * 8), *texts])  # which have no weight
    if use is Use.LATE_INTERACTION and row.name != BGE_M3:
        queries = texts if engine.info.engine != "fused" else [text.cut(QUERY_LENGTH) for text in texts]
        batches.append(with_expansion(numbers, queries))
    elif OutputKind.POOLED in engine.info.outputs and row.name != STATIC and engine.info.engine != "fused":
        batches.append(with_prompts(numbers, texts))
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
        assert row.is_fused == (row.model_type in ADAPTERS), row.name
    assert ADAPTERS.keys() - {row.model_type for row in ARCHITECTURES} == FUSED_BESIDES

"""Rows of small models in the form of each repository, in a batch and alone, as the authors' code computes them.

Repositories whose files differ only in sizes, lengths and prompts share a model; the table names this test for all.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.model import model_folder
from engine.model.coverage import ARCHITECTURES
from engine.types import Engine
from tests.engine.engines import difference, load
from tests.parity.engines import compute
from tests.parity.repositories.facts import Repository, Served
from tests.parity.repositories.folders import NUM_POSITIONS, save_small, small, small_files
from tests.parity.repositories.references import OUTPUTS, Reference
from tests.parity.repositories.table import REPOSITORIES, architecture
from tests.parity.test_parity import TOLERANCE
from tests.parity.texts import random_texts

FUSED = {"mistral3", *(row.model_type for row in ARCHITECTURES if row.is_fused)}
# Its queries are filled up beyond the small model's window, which fused refuses; the real one's reaches over them.
NOT_OPENVINO = {"ai-sage/Giga-Embeddings-instruct-10B-A1.8B-0826"}  # which has no form for layers of experts
NOT_FUSED_WHEN_SMALL = {"lightonai/GTE-ModernColBERT-v1"}

pytestmark = [pytest.mark.full, pytest.mark.holds("Every output equals the model's own library")]

REFUSED = {
    ("fused", "mixedbread-ai/mxbai-rerank-xsmall-v1"),  # DeBERTa
    ("fused", "lightonai/GTE-ModernColBERT-v1"),  # the small model's windows are shorter than its queries
}


def form_of(repository: Repository) -> str:
    """What decides about rows: not lengths, prompts and sizes."""
    files = {
        path: content
        for path, content in small_files(repository).items()
        if path in ("config.json", "modules.json") or path.endswith(("Pooling/config.json", "Dense/config.json"))
    }
    assert isinstance(repository.expected, Served)
    return json.dumps(
        [files, repository.expected.head, repository.answers, repository.buffers, repository.table], sort_keys=True
    )


def forms() -> dict[str, list[Repository]]:
    """Repositories of each form that is served."""
    found: dict[str, list[Repository]] = {}
    for repository in REPOSITORIES:
        if isinstance(repository.expected, Served) and not repository.held_by:
            found.setdefault(form_of(repository), []).append(repository)
    return found


def cases() -> Iterator[tuple[Repository, str]]:
    """A repository of each form, by each engine that serves it."""
    for repository, *_ in forms().values():
        for engine in engines_of(repository):
            yield repository, engine


def engines_of(repository: Repository) -> tuple[str, ...]:
    """Those that serve it."""
    if repository.table is not None:
        return ("static",)
    is_fused = architecture(repository) in FUSED and repository.name not in NOT_FUSED_WHEN_SMALL
    openvino = () if repository.name in NOT_OPENVINO else ("openvino",)
    return ("transformers", *openvino, *(("fused",) if is_fused else ()))


@pytest.mark.parametrize(("repository", "engine"), list(cases()), ids=lambda value: getattr(value, "name", value))
def test_rows_are_those_of_the_authors_code(repository: Repository, engine: str, tmp_path: Path) -> None:
    folder = save_small(repository, tmp_path / repository.name.rpartition("/")[2])
    loaded = load(engine, folder)
    try:
        check(loaded, small(repository), folder)
    finally:
        loaded.close()


def check(engine: Engine, repository: Repository, folder: Path) -> None:
    """Holds its rows against the reference of a repository of small files, with the weights in the folder."""
    assert isinstance(repository.expected, Served)
    kind = OUTPUTS[repository.expected.head]
    num_types: int = repository.config.get("type_vocab_size", 0)
    texts = random_texts(np.random.default_rng(7), min(engine.limits.max_seqlen, NUM_POSITIONS), num_types=num_types)
    reference = Reference(repository, folder)
    is_normalized = model_folder.read(folder).normalize
    for batch in (texts, texts[:1]):
        for text, rows in zip(batch, compute(engine, batch, kind), strict=True):
            assert difference(answered(rows[kind], is_normalized), reference(text)) <= TOLERANCE, text


def answered(row: NDArray[np.float32], is_normalized: bool) -> NDArray[Any]:
    """The row that a client gets: its length is made 1 last, at the server's edge."""
    return row / np.linalg.norm(row) if is_normalized else row

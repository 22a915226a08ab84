"""Models with a Router, equal to what sentence-transformers makes of their texts."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from sentence_transformers import SparseEncoder

from engine.fused.engine import FusedEngine
from engine.transformers.engine import TransformersEngine, load
from engine.types import Batch, EngineError, ModelError, OutputKind
from tests.engine.cpu import engines as compiled_engines
from tests.engine.cpu.engines import options
from tests.engine.engines import dense
from tests.engine.fused.loaded import load as load_fused
from tests.engine.tiny_models import VOCAB_SIZE, batch
from tests.engine.transformers.routed_models import inference_free, query_weights, same_for_both, tokenizer
from wire.parts import QUERY_TOKEN

TEXTS = ("w9 w10 w9 w11", "w40", "w20 w21", "w30 [SEP] w31 nothing", "w50 w51 w52 w53 w54 w55 w56", "")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SparseEncoder]:
    folder = tmp_path_factory.mktemp("router") / "model"
    return folder, inference_free(folder)


@pytest.fixture(scope="module")
def loaded(made: tuple[Path, SparseEncoder]) -> Iterator[TransformersEngine]:
    engine = load(name="m", reason="", options=options(made[0]))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def fused(made: tuple[Path, SparseEncoder]) -> FusedEngine:
    return load_fused(made[0])


def asked(texts: tuple[str, ...], is_query: list[bool]) -> Batch:
    sequences = [tokenizer()(text)["input_ids"] for text in texts]
    marks = [QUERY_TOKEN * own for own, sequence in zip(is_query, sequences, strict=True) for _ in sequence]
    given = np.array(marks, np.uint8) if any(marks) else None
    return dataclasses.replace(batch(sequences), outputs=OutputKind.SPARSE, marks=given)


def computed(loaded: TransformersEngine | FusedEngine, given: Batch) -> NDArray[np.float32]:
    """[B, V]"""
    loaded.submit(given)
    _, results = loaded.collect()
    assert not isinstance(results, EngineError), results
    return dense(results[OutputKind.SPARSE], VOCAB_SIZE)


def reference(model: SparseEncoder, texts: tuple[str, ...], is_query: list[bool]) -> NDArray[np.float32]:
    rows = [
        (model.encode_query if own else model.encode_document)(text, convert_to_sparse_tensor=False)
        for text, own in zip(texts, is_query, strict=True)
    ]
    return np.stack([row.numpy() for row in rows])


@pytest.mark.holds("Labels, sparse and multi-vector embeddings")
@pytest.mark.parametrize("name", ["loaded", "fused"])
@pytest.mark.parametrize("numbers", ["queries", "documents", "both"])
def test_rows_are_those_of_sentence_transformers(
    numbers: str, name: str, made: tuple[Path, SparseEncoder], request: pytest.FixtureRequest
) -> None:
    engine: TransformersEngine | FusedEngine = request.getfixturevalue(name)
    is_query = [numbers == "queries" or (numbers == "both" and place % 3 != 1) for place in range(len(TEXTS))]

    found = computed(engine, asked(TEXTS, is_query))

    expected = reference(made[1], TEXTS, is_query)
    assert np.abs(found - expected).max() <= 1e-5
    assert np.abs(expected - reference(made[1], TEXTS, [not own for own in is_query])).max() > 1e-2


def test_queries_alone_are_not_computed(loaded: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "_forward", None)
    assert computed(loaded, asked(("w9",), [True]))[0, 9] == query_weights()[9]
    assert "queries are looked up in a table and not computed" in loaded.info.notes


def test_ids_without_tokens_around_them_and_beyond_the_table(loaded: TransformersEngine) -> None:
    given = asked(("w9 w10 w11",), [True])
    given = dataclasses.replace(given, token_ids=np.array([9, 2, VOCAB_SIZE, 10, 3], np.int32))
    assert np.flatnonzero(computed(loaded, given)[0]).tolist() == [2, 9, 10]  # what is in the middle was written there
    given = dataclasses.replace(given, token_ids=np.array([9, VOCAB_SIZE, 10, 9], np.int32))
    assert np.flatnonzero(computed(loaded, given)[0]).tolist() == [9, 10]


@pytest.mark.parametrize(("wrong", "part"), [(np.nan, "not one finite number"), (None, "'weight'")])
def test_a_table_that_cannot_be(wrong: float | None, part: str, tmp_path: Path) -> None:
    inference_free(tmp_path / "model")
    file = tmp_path / "model" / "query_0_SparseStaticEmbedding" / "model.safetensors"
    save_file({"other": torch.ones(4)} if wrong is None else {"weight": torch.full((4,), wrong)}, file)
    with pytest.raises(ModelError, match=part):
        load(name="m", reason="", options=options(tmp_path / "model"))


def test_compiled_engines_look_nothing_up(made: tuple[Path, SparseEncoder]) -> None:
    with pytest.raises(ModelError, match="looks no queries up in a table; --engine transformers does"):
        compiled_engines.load(made[0])


def test_routes_of_the_same_files_are_one_model(tmp_path: Path) -> None:
    model = same_for_both(tmp_path / "model")
    plain, fused = load(name="m", reason="", options=options(tmp_path / "model")), load_fused(tmp_path / "model")
    given = dataclasses.replace(asked(TEXTS, [False] * len(TEXTS)), outputs=OutputKind.POOLED)
    for engine in (plain, fused):
        assert engine.info.normalize
        engine.submit(given)
        _, results = engine.collect()
        engine.close()
        assert isinstance(results, dict)
        rows = results[OutputKind.POOLED].values
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        for encode in (model.encode_query, model.encode_document):
            assert np.abs(rows - encode(list(TEXTS), batch_size=1)).max() <= 1e-5

    with pytest.raises(ModelError, match="'query_0_Transformer'; --engine transformers"):
        compiled_engines.load(tmp_path / "model")

"""Whole fused engines, and sequences of a batch that begin alike: rows, which models share, and what does not.

Rows are compared with those of the library's class, which computes each sequence alone.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.fused import loading
from engine.fused.cuda_device import CudaDevice, Graph, on_recorder
from engine.fused.engine import FusedEngine
from engine.fused.model.reference import ReferenceOps
from engine.fused.packing import Packer, Shape
from engine.fused.quantization import measures
from engine.model.coverage import Use
from engine.model.model_folder import read
from engine.selftest import sample_ids, selfcheck
from engine.types import Batch, OutputKind
from tests.engine.engines import difference, refusal, results
from tests.engine.fused.loaded import load, load_fp8
from tests.engine.fused.model.models import BEGIN_ALIKE, NUM_ALIKE, save
from tests.engine.tiny_models import GENERATING, Reference, WholeReference, batch, save_tame
from tests.parity import folders
from tests.tiers import full

NUM_TOKENS = sum(map(len, BEGIN_ALIKE))
NUM_COMPUTED = NUM_TOKENS - sum(NUM_ALIKE)


def sharing(kind: OutputKind = OutputKind.POOLED) -> Batch:
    return dataclasses.replace(batch(BEGIN_ALIKE, shared=NUM_ALIKE), outputs=kind)


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[Shape]:
    """Those of the batches that are computed."""
    found: list[Shape] = []
    write = Packer.write

    def noted(packer: Packer, block: NDArray[np.int32], made: Batch, shape: Shape) -> None:
        found.append(shape)
        write(packer, block, made, shape)

    monkeypatch.setattr(Packer, "write", noted)
    return found


def rows(engine: FusedEngine, kind: OutputKind, shapes: list[Shape]) -> NDArray[np.float32]:
    """Of the sequences, what they begin with computed once."""
    assert engine.info.shares_prefixes
    assert engine.info.notes[-1] == "what texts of a request begin with alike is computed once"
    found = results(engine, sharing(kind))[kind]
    assert (shapes[-1].num_tokens, shapes[-1].num_places) == (-(-NUM_COMPUTED // 16) * 16, -(-NUM_TOKENS // 16) * 16)
    if found.offsets is not None:
        assert found.offsets.tolist() == sharing().cu_seqlens.tolist()
    return found.values


@pytest.mark.holds("Fused rows equal transformers' rows")
@pytest.mark.parametrize("pooling", ["last-token", "mean", *full("cls")])
def test_embeddings(pooling: str, tmp_path: Path, shapes: list[Shape]) -> None:
    folder = save("qwen3", tmp_path / "model")
    engine = load(folder, pooling=pooling)
    reference = Reference(folder)
    found, of_tokens = rows(engine, OutputKind.POOLED, shapes), rows(engine, OutputKind.TOKENS, shapes)
    assert difference(found, reference.pooled(BEGIN_ALIKE, pooling)) <= 1e-5
    assert difference(of_tokens, np.concatenate([reference.token_rows(one) for one in BEGIN_ALIKE])) <= 1e-5
    both = results(engine, sharing(OutputKind.POOLED | OutputKind.TOKENS))
    assert difference(both[OutputKind.POOLED].values, found) <= 1e-5
    assert difference(both[OutputKind.TOKENS].values, of_tokens) <= 1e-5


@pytest.mark.holds("Heads equal the library's")
def test_scores_of_a_reranker(tmp_path: Path, shapes: list[Shape]) -> None:
    folder, question = folders.save("Qwen3", Use.GENERATIVE_RERANK, tmp_path / "model"), folders.QUESTIONS["Qwen3"]
    reference = WholeReference(folder, GENERATING)
    logits = np.stack([reference.scores(one)[-1] for one in BEGIN_ALIKE])
    expected = logits[:, [question.yes_id]] - logits[:, [question.no_id or 0]]
    assert np.ptp(expected) > 0.1
    assert difference(rows(load(folder), OutputKind.LOGITS, shapes), expected) <= 1e-5


@pytest.mark.parametrize(
    ("name", "use", "kind"),
    [
        ("Llama", Use.LATE_INTERACTION, OutputKind.MULTI_VECTOR),
        ("Qwen3", Use.TOKEN_CLASSIFY, OutputKind.TOKEN_LOGITS),
        *full(("Qwen3", Use.CLASSIFY, OutputKind.LOGITS), ("Gemma 2", Use.CLASSIFY, OutputKind.LOGITS)),
    ],
)
def test_other_outputs(name: str, use: Use, kind: OutputKind, tmp_path: Path, shapes: list[Shape]) -> None:
    """Those that sequences computed one by one have, of which other tests say that they are the library's."""
    engine = load(folders.save(name, use, tmp_path / "model"))
    alone = [results(engine, dataclasses.replace(batch([one]), outputs=kind))[kind].values for one in BEGIN_ALIKE]
    assert difference(rows(engine, kind, shapes), np.concatenate(alone)) <= 1e-5


def test_rows_in_fp8(tmp_path: Path, shapes: list[Shape], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token has its scale, whatever stands beside it."""
    for name in ("MIN_MEDIAN", "MIN_P1", "MIN_OVERLAP"):
        monkeypatch.setattr(measures, name, -1.0)
    engine = load_fp8(save_tame("qwen3", tmp_path / "model"))
    assert engine.info.dtype == "fp8"
    whole = results(engine, dataclasses.replace(sharing(), shared=None))[OutputKind.POOLED].values
    assert difference(rows(engine, OutputKind.POOLED, shapes), whole) <= 1e-3


# --- who shares


@pytest.mark.parametrize("family", ["bert", "gemma3_text, bidirectional", *full("llama, bidirectional", "modernbert")])
def test_models_whose_tokens_see_later_ones_do_not(family: str, tmp_path: Path, shapes: list[Shape]) -> None:
    """The self-test would tell, and a batch that says what sequences share is computed as if it did not."""
    folder = save(family, tmp_path / "model")
    engine = load(folder, pooling="cls")
    assert not engine.info.shares_prefixes
    found = results(engine, sharing())[OutputKind.POOLED].values
    assert shapes[-1].num_places == 0
    assert difference(found, Reference(folder, attn_implementation="eager").pooled(BEGIN_ALIKE, "cls")) <= 1e-5
    engine.info = dataclasses.replace(engine.info, shares_prefixes=True)
    for kind in (OutputKind.POOLED, OutputKind.TOKENS):
        sequences = sample_ids.arbitrary(read(folder), (5, 17, 1, 40))
        why = selfcheck.difference_by_sharing(engine, read(folder), sequences, kind, dtype="float32")
        assert why.startswith("the least cosine")


class Shifted(ReferenceOps):
    """Kernels with a fault: each token is given the row before its own."""

    def gather(self, rows: Tensor, places: Tensor) -> Tensor:
        return super().gather(rows, places - 1)


class Failing(ReferenceOps):
    """Kernels that do not run here."""

    def gather(self, rows: Tensor, places: Tensor) -> Tensor:
        raise RuntimeError("no such kernel")


@pytest.mark.parametrize(("ops", "why"), [(Shifted, "the least cosine"), (Failing, "RuntimeError: no such kernel")])
def test_where_kernels_are_wrong_each_sequence_is_computed_whole(
    ops: Callable[[], ReferenceOps], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_ops", lambda _: ops())
    folder = save("qwen3", tmp_path / "model")
    engine = load(folder, pooling="last-token")
    assert not engine.info.shares_prefixes
    assert engine.info.notes[-1].startswith(f"what texts of a request begin with alike is computed for each: {why}")
    found = results(engine, sharing())[OutputKind.POOLED].values
    assert difference(found, Reference(folder).pooled(BEGIN_ALIKE, "last-token")) <= 1e-5


# --- as on a GPU, which is pretended


@pytest.mark.usefixtures("on_hopper")
def test_batches_that_share_are_recorded_as_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Shape] = []
    record = CudaDevice._record

    def noted(device: CudaDevice, shape: Shape) -> Graph:
        recorded.append(shape)
        return record(device, shape)

    monkeypatch.setattr(CudaDevice, "_record", noted)
    folder = save("qwen3", tmp_path / "model")
    engine = load(folder, pooling="last-token", max_num_tokens=512)
    assert engine.info.shares_prefixes
    assert {(shape.num_tokens, shape.num_places) for shape in recorded if shape.num_places} == {(512, 2048)}
    recorded.clear()
    expected = Reference(folder).pooled(BEGIN_ALIKE, "last-token")
    for _ in range(3):  # the third is a graph's
        assert difference(results(engine, sharing())[OutputKind.POOLED].values, expected) <= 1e-5
        on_recorder(int)
    assert [(shape.num_tokens, shape.num_places) for shape in recorded] == [(128, 256)]


@pytest.mark.usefixtures("on_hopper")
def test_where_the_largest_batch_finds_no_memory_none_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = CudaDevice._run

    def greedy(device: CudaDevice, shape: Shape, *others: Any) -> Any:
        if shape.num_places == 2048:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(device, shape, *others)

    monkeypatch.setattr(CudaDevice, "_run", greedy)
    engine = load(save("qwen3", tmp_path / "model"), max_num_tokens=512)
    assert not engine.info.shares_prefixes
    assert engine.limits.max_num_tokens == 512
    assert "computed for each: OutOfMemoryError" in engine.info.notes[-1]


@pytest.mark.holds("Engines on a GPU")
@pytest.mark.parametrize("places", [0, 2048], ids=["self-test", "largest batch"])
@pytest.mark.usefixtures("on_hopper")
def test_a_gpu_that_is_lost_meanwhile_is_told(places: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = CudaDevice._run

    def failing(device: CudaDevice, shape: Shape, *others: Any) -> Any:
        if shape.num_places > places - 1 and shape.num_places:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return run(device, shape, *others)

    monkeypatch.setattr(CudaDevice, "_run", failing)
    assert "an illegal memory access" in refusal(load, save("qwen3", tmp_path / "model"), max_num_tokens=512)

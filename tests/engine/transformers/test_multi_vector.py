"""Late interaction: a vector for each token, by a file of its own, and how tokens are hidden from others.

tests/parity has the vectors of queries and documents.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from transformers import AutoModel

from engine.model import model_folder, tasks
from engine.model.coverage import Use
from engine.model.tasks import TokenVectors
from engine.transformers import attention
from engine.transformers.forward import HidingForward, PackedForward, PaddedForward, hiding
from engine.transformers.heads import token_vectors
from engine.transformers.prepack import PrepackedLinear
from engine.types import Batch, ModelError, OutputKind
from tests.engine.engines import difference, results
from tests.engine.tiny_models import HIDDEN_SIZE, arbitrary, batch, save
from tests.engine.transformers.loaded import load
from tests.parity import folders as parity
from tests.parity.architectures import BGE_M3
from wire.parts import EXPANSION_TOKEN

CPU = torch.device("cpu")
SEQLENS = (7, 1, 30, 7, 60, 2)


def vectors(folder: Path, head: TokenVectors, sequences: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
    """Of each sequence [S, D]."""
    some = batch(sequences)
    maker = token_vectors(model_folder.read(folder), head, CPU)
    rows = maker(PaddedForward(AutoModel.from_pretrained(folder))(some), some)
    assert rows.offsets is not None
    assert rows.values.dtype == np.float32
    return np.split(rows.values, rows.offsets[1:-1])


@pytest.fixture(scope="module")
def colbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("bert", tmp_path_factory.mktemp("multi vector") / "model")


def head(folder: str = "1_Dense", *, has_bias: bool = False, normalize: bool = True) -> TokenVectors:
    step = tasks.Dense(
        folder=folder, in_features=HIDDEN_SIZE, out_features=12, has_bias=has_bias, activation="Identity"
    )
    return TokenVectors(steps=(step,), dimensions=12, normalize=normalize)


@pytest.mark.parametrize("prefix", ["", "linear."])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_file_is_a_step(prefix: str, has_bias: bool, colbert: Path) -> None:
    """As bge-m3 has one for it alone, and ColBERT within the transformer's own."""
    torch.manual_seed(5)
    weight, bias, sequences = torch.randn(12, HIDDEN_SIZE), torch.randn(12), arbitrary(SEQLENS)
    tensors = {f"{prefix}weight": weight, "bert.linear.weight": torch.ones(3), "another": torch.ones(3)}
    save_file(tensors | ({f"{prefix}bias": bias} if has_bias else {}), colbert / "linear.safetensors")
    found = vectors(colbert, head("linear.safetensors", has_bias=has_bias, normalize=False), sequences)
    token_rows = PaddedForward(AutoModel.from_pretrained(colbert))(batch(sequences))
    expected = token_rows @ weight.T + (bias if has_bias else 0)
    assert difference(np.concatenate(found), expected.numpy()) <= 1e-5


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"other": torch.ones(1)}, "lacks the tensor 'linear.weight'"),
        ({"weight": torch.ones(12, 5)}, r"'linear.weight' is \(12, 5\), not \(12, 32\)$"),
        ({"weight": torch.full((12, HIDDEN_SIZE), torch.inf)}, "'weight' is not finite"),
    ],
)
def test_a_broken_file_is_refused(tensors: dict[str, torch.Tensor], why: str, colbert: Path) -> None:
    save_file(tensors, colbert / "broken.safetensors")
    with pytest.raises(ModelError, match=why):
        token_vectors(model_folder.read(colbert), head("broken.safetensors"), CPU)


def test_a_file_that_is_cut_short_is_refused(colbert: Path) -> None:
    file = colbert / "short.safetensors"
    save_file({"weight": torch.ones(12, HIDDEN_SIZE)}, file)
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ModelError, match="can't be read as a safetensors file"):
        token_vectors(model_folder.read(colbert), head(file.name), CPU)


def test_a_batch_without_hidden_tokens_stays_packed(tmp_path: Path) -> None:
    class Counting:
        num_calls = 0

        def __call__(self, some: Batch) -> torch.Tensor:
            self.num_calls += 1
            return torch.zeros(some.num_tokens, HIDDEN_SIZE)

    packed, padded = Counting(), Counting()
    forward = HidingForward(packed, cast(PaddedForward, padded))
    forward(batch([[5, 6]]))
    forward(batch([[5, 6]], [0, 1]))
    assert (packed.num_calls, padded.num_calls) == (2, 0)
    forward(batch([[5, 6], [7]], [0, 0, 1], marks=[0, 0, EXPANSION_TOKEN]))
    assert (packed.num_calls, padded.num_calls) == (2, 1)


def test_hidden_tokens_of_sequences_of_many_lengths_keep_their_rows(tmp_path: Path) -> None:
    """DeBERTa's rows of hidden tokens depend on the padding."""
    forward = PaddedForward(AutoModel.from_pretrained(save("deberta-v2", tmp_path / "model")))
    sequences = arbitrary((3, 9, 20, 9))
    marks = [[0] * (len(ids) // 2) + [EXPANSION_TOKEN] * (len(ids) - len(ids) // 2) for ids in sequences]
    together = forward(batch(sequences, marks=[mark for its in marks for mark in its]))
    alone = torch.cat([forward(batch([ids], marks=its)) for ids, its in zip(sequences, marks, strict=True)])
    assert difference(together.numpy(), alone.numpy()) <= 1e-5


def test_both_ways_share_their_weights(tmp_path: Path) -> None:
    """Those laid out anew, too."""
    folder = save("bert", tmp_path / "model")
    some, expected = batch(arbitrary(SEQLENS)), PaddedForward(AutoModel.from_pretrained(folder))
    attention.register()
    model = AutoModel.from_pretrained(folder, attn_implementation=attention.PACKED)
    first = model.encoder.layer[0].intermediate
    first.dense = PrepackedLinear(first.dense)
    forward = hiding(PackedForward(model, padding_idx=None))
    assert isinstance(forward, HidingForward)
    twin: Any = forward.padded._model
    assert {each.data_ptr() for each in twin.parameters()} == {each.data_ptr() for each in model.parameters()}
    assert twin.encoder.layer[0].intermediate.dense.weight is first.dense.weight
    assert (model.config._attn_implementation, twin.config._attn_implementation) == (attention.PACKED, "sdpa")
    for way in (forward.packed, forward.padded):
        assert difference(way(some).numpy(), expected(some).numpy()) <= 1e-5


@pytest.mark.holds("Labels, sparse and multi-vector embeddings")
def test_all_outputs_come_from_one_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(parity.save(BGE_M3, Use.EMBED, tmp_path / "model"))
    forward, batches = loaded._forward, []

    def counting(some: Batch) -> torch.Tensor:
        batches.append(some)
        return forward(some)

    monkeypatch.setattr(loaded, "_forward", counting)
    made = dataclasses.replace(batch(arbitrary(SEQLENS)), outputs=loaded.info.outputs)
    found = results(loaded, made)
    assert len(found) == 4
    assert len(batches) == 1
    for outputs in (*loaded.info.outputs, OutputKind.POOLED | OutputKind.SPARSE):
        for kind, rows in results(loaded, dataclasses.replace(made, outputs=outputs)).items():
            assert difference(rows.values, found[kind].values) <= 1e-6
    loaded.close()

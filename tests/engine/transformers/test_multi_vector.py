"""Late interaction: a vector for each token, and query tokens that the others do not see.

Against sentence-transformers' MultiVectorEncoder, and transformers with the mask that it takes.
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
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from torch import nn
from transformers import AutoModel

from engine.model import model_folder, tasks
from engine.model.tasks import LateInteraction, Task, TokenVectors
from engine.transformers import attention, engine
from engine.transformers.forward import HidingForward, PackedForward, PaddedForward, hiding
from engine.transformers.heads import token_vectors
from engine.transformers.loading import load_model
from engine.transformers.prepack import PrepackedLinear
from engine.transformers.selftest import choose_forward
from engine.types import EXPANSION_TOKEN, Batch, ModelError, OutputKind
from tests.engine import engines
from tests.engine.cpu.engines import options
from tests.engine.engines import difference
from tests.engine.rows.sentence_models import save_words, text_of
from tests.engine.tiny_models import HIDDEN_SIZE, PADDED, arbitrary, batch, save

CPU = torch.device("cpu")
SEQLENS = (7, 1, 30, 7, 60, 2)
EXPANSION_ID = 5
QUERY_LENGTH = 12


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
    """A transformer and a Dense without bias, in a folder each."""
    folder = save("bert", tmp_path_factory.mktemp("multi vector") / "model")
    save_words(folder)
    torch.manual_seed(2)
    (folder / "1_Dense").mkdir()
    dense(HIDDEN_SIZE, 12).save(str(folder / "1_Dense"))
    return folder


def dense(in_features: int, out_features: int) -> Dense:
    return Dense(
        in_features, out_features, bias=False, activation_function=nn.Identity(), module_input_name="token_embeddings"
    )


def head(folder: str = "1_Dense", *, has_bias: bool = False, normalize: bool = True) -> TokenVectors:
    step = tasks.Dense(
        folder=folder, in_features=HIDDEN_SIZE, out_features=12, has_bias=has_bias, activation="Identity"
    )
    return TokenVectors(steps=(step,), dimensions=12, normalize=normalize)


def encoder(folder: Path) -> MultiVectorEncoder:
    expansion = {"strategy": "fixed", "attend": False, "length": QUERY_LENGTH, "token": f"w{EXPANSION_ID}"}
    transformer = Transformer(str(folder), query_expansion=expansion)
    normalize = Normalize(module_input_name="token_embeddings", module_output_name="token_embeddings")
    modules = [transformer, Dense.load(str(folder / "1_Dense")), normalize, MultiVectorMask()]
    return MultiVectorEncoder(modules=modules, device="cpu")


def test_documents_have_the_vectors_of_sentence_transformers(colbert: Path) -> None:
    sequences, reference = arbitrary(SEQLENS), encoder(colbert)
    found = vectors(colbert, head(), sequences)
    for sequence, rows in zip(sequences, found, strict=True):
        expected = reference.encode_document(text_of(sequence), convert_to_numpy=True)
        assert difference(rows, expected) <= 1e-5
        assert difference(vectors(colbert, head(), [sequence])[0], expected) <= 1e-5


@pytest.mark.holds("Labels, sparse and multi-vector embeddings")
def test_queries_have_the_vectors_of_sentence_transformers(colbert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with what fills it up, which it does not see."""
    sequences, reference = arbitrary((7, 1, QUERY_LENGTH, 7, 3)), encoder(colbert)
    queries = [[*sequence, *[EXPANSION_ID] * (QUERY_LENGTH - len(sequence))] for sequence in sequences]
    some = with_hidden(queries, [QUERY_LENGTH - len(sequence) for sequence in sequences])
    late = LateInteraction(query_length=QUERY_LENGTH, expansion_id=EXPANSION_ID)
    read = dataclasses.replace(model_folder.read(colbert), task=Task.LATE_INTERACTION, heads=(head(),), late=late)
    monkeypatch.setattr(model_folder, "read", lambda _, **__: read)
    loaded = engine.load(name="m", reason="", options=options(colbert))
    assert loaded.info.outputs == OutputKind.MULTI_VECTOR
    expected = np.concatenate([reference.encode_query(text_of(one), convert_to_numpy=True) for one in sequences])
    assert difference(engines.rows(loaded, some, OutputKind.MULTI_VECTOR), expected) <= 1e-5
    seen = engines.rows(loaded, dataclasses.replace(some, token_type_ids=None), OutputKind.MULTI_VECTOR)
    assert difference(seen, expected) > 1e-3
    loaded.close()


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


def masked(folder: Path, sequence: Sequence[int], num_hidden: int) -> NDArray[np.float32]:
    """transformers' own rows of one sequence whose last tokens are hidden."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32)
    is_seen = torch.arange(len(sequence)) < len(sequence) - num_hidden
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([list(sequence)]), attention_mask=is_seen[None].long())
    rows: NDArray[np.float32] = output.last_hidden_state[0].numpy()
    return rows


@pytest.mark.parametrize("family", ["bert", "distilbert", "xlm-roberta", "modernbert", "qwen3", "mpnet"])
def test_hidden_tokens_are_not_seen_and_have_rows(family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    sequences, num_hidden = arbitrary((9, 9, 2, 20, 5)), (4, 0, 1, 11, 2)
    some = with_hidden(sequences, num_hidden)
    read = model_folder.read(folder)
    forward = hiding(choose_forward(load_model(read, dtype=torch.float32), read, prepacks=True).forward)
    assert isinstance(forward, PaddedForward if family in PADDED else HidingForward)
    expected = np.concatenate([masked(folder, *each) for each in zip(sequences, num_hidden, strict=True)])
    assert difference(forward(some).numpy(), expected) <= 1e-5
    if family == "qwen3":  # causal, so what is hidden at the end was not seen but by what is hidden itself
        return
    seen = [masked(folder, sequence, 0) for sequence in sequences]
    assert difference(np.concatenate(seen), expected) > 1e-3
    assert difference(forward(batch(sequences)).numpy(), np.concatenate(seen)) <= 1e-5


def with_hidden(sequences: Sequence[Sequence[int]], num_hidden: Sequence[int]) -> Batch:
    types: list[int] = []
    for sequence, number in zip(sequences, num_hidden, strict=True):
        types += [0] * (len(sequence) - number) + [EXPANSION_TOKEN] * number
    return batch(sequences, types)


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
    forward(batch([[5, 6], [7]], [0, 0, EXPANSION_TOKEN + 1]))
    assert (packed.num_calls, padded.num_calls) == (2, 1)


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

"""SPLADE's vocabulary weights and bge-m3's token weights: against sentence-transformers, and read plainly."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sparse_encoder.modules import SpladePooling
from torch.nn import functional
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedModel

from engine.model import model_folder
from engine.model.tasks import TokenWeights, VocabularyWeights
from engine.transformers import sparse
from engine.transformers.forward import PaddedForward
from engine.transformers.sparse import token_weights, vocabulary_weights
from engine.types import ModelError
from tests.engine.engines import dense, difference
from tests.engine.sentence_models import save_words, text_of
from tests.engine.tiny_models import HIDDEN_SIZE, VOCAB_SIZE, arbitrary, batch, save

CPU = torch.device("cpu")
SEQLENS = (7, 1, 30, 7, 60, 2, 1)


def save_whole(family: str, folder: Path) -> Path:
    """A masked language model, with a bias that leaves about half of the entries out."""
    config = AutoConfig.from_pretrained(save(family, folder))
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForMaskedLM.from_config(config)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    save_words(folder)
    return folder


def made(whole: PreTrainedModel, head: VocabularyWeights, sequences: list[list[int]]) -> NDArray[np.float32]:
    some, model = batch(sequences), whole.base_model
    assert isinstance(model, PreTrainedModel)
    maker, _ = vocabulary_weights(whole, head)
    return dense(maker(PaddedForward(model)(some), some), VOCAB_SIZE)


def encoded(folder: Path, head: VocabularyWeights, sequences: list[list[int]]) -> NDArray[np.float32]:
    """[B, V] by sentence-transformers, one text at a time."""
    pooling = SpladePooling(head.pooling, head.activation)  # type: ignore[arg-type]
    model = SparseEncoder(modules=[Transformer(str(folder), transformer_task="fill-mask"), pooling], device="cpu")
    return np.stack([model.encode(text_of(one), convert_to_sparse_tensor=False).numpy() for one in sequences])


@pytest.mark.holds("The whole vocabulary is never projected at once")
@pytest.mark.parametrize("max_tokens", [1, 3, 8, 10_000])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@pytest.mark.parametrize("pooling", ["max", "sum"])
def test_each_way_in_slices_of_any_size(
    pooling: str, activation: str, max_tokens: int, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that end within a sequence, with one, and with several in them."""
    monkeypatch.setattr(sparse, "_SLICE_NUMBERS", max_tokens * VOCAB_SIZE)
    head, sequences = VocabularyWeights(pooling=pooling, activation=activation), arbitrary((8, 8, 1, 1, 1, 5, 20, 3))
    whole = AutoModelForMaskedLM.from_pretrained(bert)
    assert difference(made(whole, head, sequences), encoded(bert, head, sequences)) <= 1e-5


def test_no_slice_is_larger_than_it_may_be(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "_SLICE_NUMBERS", 9 * VOCAB_SIZE)
    whole = AutoModelForMaskedLM.from_pretrained(bert)
    sizes = []
    whole.cls.register_forward_hook(lambda _, __, scores: sizes.append(scores.shape[1]))
    made(whole, VocabularyWeights(), arbitrary(SEQLENS))
    assert sum(sizes) == sum(SEQLENS)
    assert max(sizes) == 9


def test_a_text_that_calls_nothing_to_mind_has_no_entries(bert: Path) -> None:
    whole = AutoModelForMaskedLM.from_pretrained(bert)
    with torch.no_grad():
        whole.cls.predictions.bias.fill_(-1e4)
    assert not made(whole, VocabularyWeights(), arbitrary((3, 1))).any()


def test_scores_that_are_no_numbers_are_not_lost(bert: Path) -> None:
    """So that they are noticed, and never served as missing entries."""
    whole = AutoModelForMaskedLM.from_pretrained(bert)
    with torch.no_grad():
        whole.cls.predictions.bias[5] = torch.nan
    assert np.isnan(made(whole, VocabularyWeights(), arbitrary((3, 1)))[:, 5]).all()


def test_the_model_keeps_its_transformer(bert: Path) -> None:
    whole = AutoModelForMaskedLM.from_pretrained(bert)
    vocabulary_weights(whole, VocabularyWeights())
    assert type(whole.base_model).__name__ == "BertModel"


def test_leaving_out_the_head_or_its_activation_would_show(bert: Path) -> None:
    whole, sequences = AutoModelForMaskedLM.from_pretrained(bert), arbitrary(SEQLENS)
    rows = made(whole, VocabularyWeights(), sequences)
    for other in (VocabularyWeights(pooling="sum"), VocabularyWeights(activation="log1p_relu")):
        assert difference(made(whole, other, sequences), rows) > 1e-3


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_whole("bert", tmp_path_factory.mktemp("sparse") / "model")


@pytest.fixture
def lexical(tmp_path: Path) -> Path:
    """A model with bge-m3's sparse head."""
    folder = save("bert", tmp_path / "model")
    numbers = torch.Generator().manual_seed(3)
    weight = torch.randn(1, HIDDEN_SIZE, generator=numbers)
    save_file({"weight": weight, "bias": torch.tensor([0.1])}, folder / "sparse_linear.safetensors")
    return folder


def test_token_weights_are_the_largest_of_each_id(lexical: Path) -> None:
    """As FlagEmbedding makes them of the model's own rows."""
    unused = (4, 9)
    sequences = [*arbitrary(SEQLENS), [4, 20, 20, 20, 21, 4, 9, 21]]
    some, folder = batch(sequences), model_folder.read(lexical)
    token_rows = torch.from_numpy(np.random.default_rng(5).normal(size=(some.num_tokens, HIDDEN_SIZE)))
    rows = dense(token_weights(folder, TokenWeights(unused_ids=unused), CPU)(token_rows, some), VOCAB_SIZE)

    tensors = load_file(lexical / "sparse_linear.safetensors")
    weights = functional.linear(token_rows.float(), tensors["weight"], tensors["bias"]).relu()[:, 0].tolist()
    expected = np.zeros((len(sequences), VOCAB_SIZE), np.float32)
    numbered = [(number, token_id) for number, sequence in enumerate(sequences) for token_id in sequence]
    for place, weight in zip(numbered, weights, strict=True):
        if place[1] not in unused:
            expected[place] = max(expected[place], weight)
    assert difference(rows, expected) <= 1e-6


def test_zeros_and_unused_ids_have_no_entry(lexical: Path) -> None:
    some = batch([[5, 6], [7], [8, 8]])
    token_rows = torch.zeros((5, HIDDEN_SIZE))
    maker = token_weights(model_folder.read(lexical), TokenWeights(unused_ids=(5, 8)), CPU)
    rows = maker(token_rows, some)
    assert rows.offsets is not None
    assert rows.offsets.tolist() == [0, 1, 2, 2]
    assert rows.values[:, 0].tolist() == [6, 7]
    assert np.allclose(rows.values[:, 1], 0.1)


@pytest.mark.parametrize("change", ["no file", "no bias", "shape", "not finite"])
def test_a_broken_head_is_refused(change: str, lexical: Path) -> None:
    file, weight = lexical / "sparse_linear.safetensors", torch.ones(1, HIDDEN_SIZE)
    contents = {
        "no bias": {"weight": weight},
        "shape": {"weight": torch.ones(1, 5), "bias": torch.ones(1)},
        "not finite": {"weight": weight * torch.nan, "bias": torch.ones(1)},
    }
    file.unlink()
    if change in contents:
        save_file(contents[change], file)
    with pytest.raises(ModelError, match=r"sparse_linear\.safetensors"):
        token_weights(model_folder.read(lexical), TokenWeights(unused_ids=()), CPU)

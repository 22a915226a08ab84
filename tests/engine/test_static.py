"""The static engine: its rows against sentence-transformers', its files, and what it refuses to load."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding
from torch import Tensor, nn

from engine import registry
from engine.model import model_folder
from engine.selftest.warmup import warm_up
from engine.static import StaticEngine, read_table
from engine.transformers.engine import load as load_transformers
from engine.types import EngineClosed, EngineError, ModelError, OutputKind
from tests.engine.cpu.engines import options
from tests.engine.engines import difference, results
from tests.engine.sentence_models import text_of, words
from tests.engine.tiny_models import VOCAB_SIZE, arbitrary, batch, save

ROOT = Path(__file__).parents[2]
DIMENSIONS = 24
SEQLENS = (7, 1, 30, 7, 300, 2, 1)
BOTH = OutputKind.POOLED | OutputKind.TOKENS


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def save_static(folder: Path, *modules: nn.Module) -> Path:
    """As sentence-transformers writes it."""
    static = StaticEmbedding(words(), embedding_weights=random(VOCAB_SIZE, DIMENSIONS))
    SentenceTransformer(modules=[static, *modules], device="cpu").save_pretrained(str(folder), create_model_card=False)
    return folder


def save_model2vec(folder: Path, tensors: dict[str, Tensor], *, normalize: bool = True) -> Path:
    """As model2vec writes it: no modules.json."""
    folder.mkdir()
    words().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": normalize}))
    save_file(tensors, folder / "model.safetensors")
    return folder


def load(folder: Path, **others: Any) -> StaticEngine:
    loaded = registry.load("static", name="m", reason="asked", options=options(folder, **others))
    assert isinstance(loaded, StaticEngine)
    return loaded


def handed_out(loaded: StaticEngine, sequences: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    rows = results(loaded, dataclasses.replace(batch(sequences), outputs=BOTH))[OutputKind.POOLED].values
    assert rows.dtype == np.float32
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if loaded.info.normalize else rows


CHAINS: dict[str, Callable[[], list[nn.Module]]] = {
    "alone": list,
    "normalized": lambda: [Normalize()],
    "with a Dense": lambda: [Dense(DIMENSIONS, 10, activation_function=nn.Tanh()), Normalize()],
}


@pytest.mark.parametrize("chain", CHAINS)
def test_rows_equal_sentence_transformers(chain: str, tmp_path: Path) -> None:
    folder, sequences = save_static(tmp_path / "model", *CHAINS[chain]()), arbitrary(SEQLENS)
    loaded = load(folder)
    reference = SentenceTransformer(str(folder), device="cpu")
    expected = np.stack([reference.encode(text_of(sequence)) for sequence in sequences])
    rows = handed_out(loaded, sequences)
    assert loaded.info.dimensions == expected.shape[1]
    assert difference(rows, expected) <= 1e-6
    for number, sequence in enumerate(sequences):
        assert difference(handed_out(loaded, [sequence]), rows[number : number + 1]) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("others", ["", "weights", "mapping", "weights and mapping"])
def test_the_tables_of_model2vec(others: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """A weight for each token, and one row for several, are folded into the table by sentence-transformers."""
    tensors = {"embeddings": random(50 if "mapping" in others else VOCAB_SIZE, DIMENSIONS, dtype=dtype)}
    if "mapping" in others:
        tensors["mapping"] = torch.arange(VOCAB_SIZE) * 7 % 50
    if "weights" in others:
        tensors["weights"] = random(VOCAB_SIZE).abs().double()
    folder, sequences = save_model2vec(tmp_path / "model", tensors), arbitrary(SEQLENS)
    loaded, static = load(folder), StaticEmbedding.load(str(folder)).float()
    expected = SentenceTransformer(modules=[static, Normalize()], device="cpu").encode(list(map(text_of, sequences)))
    assert (loaded.info.vocab_size, loaded.info.dimensions) == (VOCAB_SIZE, DIMENSIONS)
    assert loaded.info.normalize
    assert difference(handed_out(loaded, sequences), expected) <= 1e-6


def test_integers_are_numbers_too(tmp_path: Path) -> None:
    table = torch.arange(VOCAB_SIZE * 2, dtype=torch.int8).view(VOCAB_SIZE, 2)
    loaded = load(save_model2vec(tmp_path / "model", {"embeddings": table}, normalize=False))
    assert handed_out(loaded, [[5, 7]]).tolist() == table[[5, 7]].float().mean(dim=0)[None].tolist()


def test_a_token_row_is_the_tables(tmp_path: Path) -> None:
    folder, sequences = save_static(tmp_path / "model", Normalize()), arbitrary(SEQLENS)
    rows = results(load(folder), dataclasses.replace(batch(sequences), outputs=BOTH))[OutputKind.TOKENS]
    assert rows.offsets is not None
    assert rows.offsets.tolist() == np.cumsum([0, *SEQLENS]).tolist()
    assert np.array_equal(rows.values, random(VOCAB_SIZE, DIMENSIONS).numpy()[np.concatenate(sequences)])


def test_a_text_without_tokens_is_a_row_of_zeros(tmp_path: Path) -> None:
    """As sentence-transformers has it; special tokens are not added, so there are such texts."""
    loaded = load(save_static(tmp_path / "model"))
    rows = handed_out(loaded, [[], [5], [], [6, 7], []])
    assert not rows[[0, 2, 4]].any()
    assert np.array_equal(rows[[1, 3]], handed_out(loaded, [[5], [6, 7]]))
    assert not handed_out(loaded, [[]]).any()


def test_batches_come_back_in_order_until_it_is_closed(tmp_path: Path) -> None:
    loaded = load(save_static(tmp_path / "model"))
    tickets = [loaded.submit(batch([[number]])) for number in (5, 6)]
    loaded.close()
    assert [loaded.collect()[0] for _ in tickets] == tickets
    for _ in range(2):
        with pytest.raises(EngineClosed):
            loaded.collect()


def test_a_batch_that_fails_does_not_end_it(tmp_path: Path) -> None:
    loaded = load(save_static(tmp_path / "model"))
    loaded.submit(batch([[VOCAB_SIZE]]))
    assert isinstance(loaded.collect()[1], EngineError)
    assert handed_out(loaded, [[5]]).shape == (1, DIMENSIONS)


def test_it_warms_up_and_says_what_it_is(tmp_path: Path) -> None:
    loaded = load(save_static(tmp_path / "model"), device="cuda:0")
    assert warm_up(loaded).tokens_per_second > 0
    info = loaded.info
    assert (info.engine, info.device, info.dtype, info.pooling) == ("static", "cpu", "float32", "mean")
    assert info.outputs == BOTH


def test_it_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    folder = save_static(tmp_path / "model", Dense(DIMENSIONS, 10))
    program = (
        "import sys; from engine import registry; from engine.messages import LoadOptions; "
        f"registry.load('static', name='m', reason='', options={options(folder)!r}); "
        "print(sorted({'torch', 'transformers', 'safetensors'} & set(sys.modules)))"
    )
    command = [sys.executable, "-P", "-c", program]
    found = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert found.stdout.strip() == "[]", found.stderr


@pytest.mark.parametrize(
    ("others", "why"),
    [({"pooling": "cls"}, "--pooling cls is not for static"), ({"dtype": "float16"}, "--dtype float16 is not one of")],
)
def test_what_it_does_not_do_is_refused(others: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=why):
        load(save_static(tmp_path / "model"), **others)


def test_each_engine_refuses_the_others_models(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has a network"):
        load(save("bert", tmp_path / "bert"))
    with pytest.raises(ModelError, match="--engine static serves"):
        load_transformers(name="m", reason="", options=options(save_static(tmp_path / "static")))


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"embedding": random(9, 4)}, "no table of embeddings"),
        ({"embeddings": random(9)}, "it needs two dimensions"),
        ({"embeddings": random(9, 4), "mapping": torch.tensor([0, 9])}, "does not name a row"),
        ({"embeddings": random(9, 4), "mapping": torch.tensor([0, -1])}, "does not name a row"),
        ({"embeddings": random(9, 4), "weights": random(8)}, r"'weights' is \(8,\), not \(9,\)"),
        ({"embeddings": random(9, 4).to(torch.float8_e4m3fn)}, "can't be read"),
    ],
)
def test_a_table_that_is_none_is_refused(tensors: dict[str, Tensor], why: str, tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=why):
        read_table(tmp_path / "model.safetensors")


def test_a_folder_says_where_its_table_is(tmp_path: Path) -> None:
    folder = model_folder.read(save_static(tmp_path / "model", Normalize()))
    assert (folder.weights_folder / "model.safetensors").is_file()


def test_a_tokenizer_that_cuts_texts_says_the_length(tmp_path: Path) -> None:
    folder = save_static(tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    cut = {"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"truncation": cut}))
    found = model_folder.read(folder)
    assert (found.max_seqlen, found.max_seqlen_source) == (5, "tokenizer.json")
    sequence = list(range(1, 8))
    expected = SentenceTransformer(str(folder), device="cpu").encode(text_of(sequence))
    assert np.abs(handed_out(load(folder), [sequence[:5]])[0] - expected).max() < 1e-6
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"truncation": cut | {"direction": "Left"}}))
    with pytest.raises(ModelError, match="truncates texts on the left"):
        model_folder.read(folder)

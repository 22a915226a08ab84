"""Rows of whole chains of modules, each engine's against sentence-transformers one text at a time."""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers.sentence_transformer.modules import Dense, Dropout, LayerNorm, Normalize
from torch import nn

from engine.model import model_folder
from engine.model.tasks import POOLINGS
from engine.rows import with_numpy, with_torch
from engine.types import Engine, ModelError, OutputKind
from tests.engine.engines import difference, load, results
from tests.engine.sentence_models import SEQLENS, encoded, save_chain
from tests.engine.tiny_models import HIDDEN_SIZE, arbitrary, batch
from tests.tiers import full_but

MODES = tuple("lasttoken" if name == "last" else name for name in POOLINGS)


def two_dense() -> list[nn.Module]:
    """As EmbeddingGemma has it, with a bias, an activation and a Normalize in the end."""
    wide, narrow = Dense(HIDDEN_SIZE, 48, bias=False, activation_function=nn.Identity()), Dense(48, 20)
    return [wide, narrow, Normalize()]


def many_kinds() -> list[nn.Module]:
    """What a Normalize in the middle does shows, for a LayerNorm alone would undo it."""
    gelu = Dense(HIDDEN_SIZE, 24, activation_function=nn.GELU(), use_residual=True)
    return [Normalize(), Dropout(0.5), gelu, LayerNorm(24), Dense(24, 24, activation_function=nn.SiLU())]


CHAINS: dict[str, tuple[Any, Callable[[], list[nn.Module]]]] = {
    "all poolings joined": (MODES[::-1], list),
    "two Dense": ("mean", two_dense),
    "two Dense after the last token": ("lasttoken", two_dense),
    "many kinds": ("cls", many_kinds),
}


def pooled(loaded: Engine, sequences: list[list[int]]) -> NDArray[np.float32]:
    """Rows as they are handed out."""
    both = dataclasses.replace(batch(sequences), outputs=OutputKind.POOLED | OutputKind.TOKENS)
    found = results(loaded, both)
    alone = results(loaded, batch(sequences))[OutputKind.POOLED].values
    rows = found[OutputKind.POOLED].values
    assert found[OutputKind.TOKENS].values.shape == (sum(SEQLENS), HIDDEN_SIZE)
    assert rows.dtype == np.float32
    assert difference(alone, rows) <= 1e-5  # pruned where the engine can, and not
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if loaded.info.normalize else rows


def check(engine: str, folder: Path, **others: Any) -> None:
    sequences = arbitrary(SEQLENS)
    expected = encoded(folder, sequences)
    loaded = load(engine, folder, num_threads=2, **others)
    rows = pooled(loaded, sequences)
    loaded.close()
    assert loaded.info.dimensions == expected.shape[1] == model_folder.read(folder).dimensions
    assert difference(rows, expected) <= 1e-5


@pytest.mark.holds("Pooling and Dense modules equal sentence-transformers'")
@pytest.mark.parametrize("mode", full_but(("max", "weightedmean"), MODES))
def test_each_pooling(mode: str, tmp_path: Path) -> None:
    check("transformers", save_chain(tmp_path / "model", mode))


@pytest.mark.holds("Pooling and Dense modules equal sentence-transformers'")
@pytest.mark.parametrize(
    ("chain", "engine"),
    [
        *((chain, "transformers") for chain in CHAINS),
        *full_but(
            [("many kinds", "openvino"), ("all poolings joined", "fused")],
            [*itertools.product(CHAINS, ("openvino", "fused"))],  # to compile takes a second or two
        ),
    ],
)
def test_rows_equal_sentence_transformers(chain: str, engine: str, tmp_path: Path) -> None:
    pooling, modules = CHAINS[chain]
    folder = save_chain(tmp_path / "model", pooling, *modules())
    if engine == "fused" and not isinstance(pooling, str):
        with pytest.raises(ModelError, match="--engine transformers does"):
            load(engine, folder)
        return
    check(engine, folder)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["lasttoken", "cls", "mean"])
def test_each_pooling_of_the_fused_engine(mode: str, tmp_path: Path) -> None:
    check("fused", save_chain(tmp_path / "model", mode, *two_dense()))


def test_a_padded_model_of_another_family(tmp_path: Path) -> None:
    check("transformers", save_chain(tmp_path / "model", "weightedmean", *two_dense(), family="deberta-v2"))


@pytest.mark.holds("Pooling and Dense modules equal sentence-transformers'")
def test_leaving_a_step_out_would_show(tmp_path: Path) -> None:
    folder = model_folder.read(save_chain(tmp_path / "model", "cls", *many_kinds()))
    assert len(folder.steps) == 4
    rows = np.random.default_rng(0).normal(size=(5, HIDDEN_SIZE)).astype(np.float32)
    whole = with_numpy.load_modules(folder.path, folder.steps)(rows)
    for left_out in (0, 2):  # the others change the size
        steps = [step for number, step in enumerate(folder.steps) if number != left_out]
        assert difference(with_numpy.load_modules(folder.path, steps)(rows), whole) > 1e-3


@pytest.mark.full
def test_int8_is_measured_on_the_rows_that_are_handed_out(tmp_path: Path) -> None:
    folder = save_chain(tmp_path / "model", "mean", *two_dense())
    loaded = load("openvino", folder, quantization="int8", num_threads=2)
    rows, expected = pooled(loaded, arbitrary(SEQLENS)), encoded(folder, arbitrary(SEQLENS))
    loaded.close()
    assert rows.shape == (len(SEQLENS), 20)
    assert (rows * expected).sum(axis=1).min() > 0.9


def test_other_weights_of_a_module_are_another_model(tmp_path: Path) -> None:
    """A kept model's facts were measured on rows that they made."""
    cache = str(tmp_path / "cache")
    for number in range(2):
        folder = save_chain(tmp_path / "model", "mean", *two_dense(), seed=number)
        check("openvino", folder, cache_dir=cache)
    assert len([path for path in Path(cache, "compiled").iterdir() if path.is_dir()]) == 2


@pytest.mark.parametrize("length", [1, 7, 5000])
def test_a_mean_is_exact_and_its_own(length: int) -> None:
    generator = torch.Generator().manual_seed(0)
    own, other = (torch.randn(length, 8, generator=generator) + 1 for _ in range(2))
    exact = own.double().mean(dim=0).float()
    bounds = torch.tensor([0, length, 2 * length])
    assert torch.equal(with_torch.pool(torch.cat([own, other * 1e6]), bounds, poolings=["mean"])[0], exact)
    assert torch.equal(with_torch.pool(torch.cat([other * 1e6, own]), bounds, poolings=["mean"])[1], exact)


def test_first_and_last_tokens() -> None:
    token_rows = torch.arange(12.0).reshape(6, 2)
    bounds = torch.tensor([0, 1, 4, 6])
    assert with_torch.pool(token_rows, bounds, poolings=["cls"]).tolist() == [[0, 1], [2, 3], [8, 9]]
    assert with_torch.pool(token_rows, bounds, poolings=["last"]).tolist() == [[0, 1], [6, 7], [10, 11]]

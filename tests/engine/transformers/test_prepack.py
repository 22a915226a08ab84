"""Linear layers laid out for oneDNN: the same rows, no second copy of the weights, and only where it gains."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine.model import model_folder
from engine.model.model_folder import ModelFolder
from engine.transformers import engine, prepack, selftest
from engine.transformers.forward import PackedForward
from engine.transformers.loading import load_model
from engine.transformers.prepack import PrepackedLinear, is_prepacked, rows_with_code
from engine.types import ModelError
from tests.engine.engines import load_options
from tests.engine.tiny_models import arbitrary, batch, save

has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
needs_onednn = pytest.mark.skipif(not has_onednn, reason="torch is built without oneDNN")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer is exchanged, however slow it is."""
    monkeypatch.setattr(prepack, "_MIN_GAIN", 0.0)


class Shared(nn.Module):
    """Layers of two shapes, one of them in two places, and one of half the precision."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 40)
        self.again = self.first
        self.layers = nn.ModuleList([nn.Linear(40, 24, bias=False)])
        self.halved = nn.Linear(24, 24, dtype=torch.bfloat16)
        self.requires_grad_(False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        middle: torch.Tensor = self.layers[0](torch.tanh(self.first(rows)))
        last: torch.Tensor = self.again(middle)
        return last


@needs_onednn
@pytest.mark.usefixtures("always")
def test_rows_are_the_same_in_any_shape() -> None:
    torch.manual_seed(0)
    model = Shared()
    inputs = [torch.randn(*shape, 24) for shape in ((1,), (7,), (1, 33), (3, 5))]
    inputs.append(torch.randn(24, 9).T)
    expected = [model(rows) for rows in inputs]
    note = prepack.prepack(model)
    assert "2 of 2 prepacked" in note
    assert isinstance(model.first, PrepackedLinear)
    assert model.first is model.again
    assert type(model.halved) is nn.Linear
    for rows, wanted in zip(inputs, expected, strict=True):
        assert (model(rows) - wanted).abs().max() <= 1e-5


@needs_onednn
@pytest.mark.usefixtures("always")
def test_the_plain_weights_are_let_go() -> None:
    model = Shared()
    prepack.prepack(model)
    assert {name for name, _ in model.named_parameters()} == {"first.bias", "halved.weight", "halved.bias"}


def test_what_gains_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepack, "_MIN_GAIN", float("inf"))
    model = Shared()
    assert "none gains" in prepack.prepack(model)
    assert not is_prepacked(model)


@needs_onednn
@pytest.mark.usefixtures("always")
def test_what_gives_other_rows_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    right = PrepackedLinear.forward
    monkeypatch.setattr(PrepackedLinear, "forward", lambda self, rows: right(self, rows) * 1.001)
    model = Shared()
    assert "none gains" in prepack.prepack(model)
    assert not is_prepacked(model)


def test_a_torch_without_onednn_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = Shared()
    assert "without oneDNN" in prepack.prepack(model)
    assert not is_prepacked(model)


def test_few_numbers_of_rows_have_code() -> None:
    numbers = range(1, 16_385)
    rounded = [rows_with_code(number) for number in numbers]
    assert all(number <= up <= 1.032 * number for number, up in zip(numbers, rounded, strict=True))
    assert [rows_with_code(up) for up in rounded] == rounded
    assert len(set(rounded)) <= 64 + 8 * 32


@needs_onednn
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("family", ["bert", "roberta", "qwen3", "mpnet"])
def test_filler_changes_no_row(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_folder.read(save(family, tmp_path / "model"))
    sequences = batch(arbitrary((50, 17, 40, 30, 30)))  # 167 tokens
    plain = selftest.choose_forward(load_model(folder, dtype=torch.float32), folder)
    filled = selftest.choose_forward(load_model(folder, dtype=torch.float32), folder, prepacks=True)
    assert any("prepacked" in note for note in filled.notes)
    asked = []

    def nine_more(num_rows: int) -> int:
        asked.append(num_rows)
        return num_rows + 9

    monkeypatch.setattr("engine.transformers.forward.rows_with_code", nine_more)
    rows = filled.forward(sequences)
    assert rows.shape[0] == 167
    assert (rows - plain.forward(sequences)).abs().max() <= 1e-5
    assert asked == ([167] if isinstance(filled.forward, PackedForward) else [])


class Peeking(nn.Linear):
    """Not exchanged itself; looks at the weights of a layer that is."""

    neighbour: nn.Module

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows) + 0 * self.neighbour.dense.weight[0, 0]  # type: ignore[union-attr, index]


@pytest.mark.holds("Prepacked weights give the same rows")
@needs_onednn
@pytest.mark.usefixtures("always")
def test_a_model_that_needs_its_plain_weights_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save("bert", tmp_path / "model")

    def load_peeking(some: ModelFolder, *, dtype: torch.dtype) -> Any:
        model: Any = load_model(some, dtype=dtype)
        output = model.encoder.layer[1].output
        output.dense.__class__ = Peeking
        output.dense.__dict__["neighbour"] = model.encoder.layer[0].output
        return model

    monkeypatch.setattr(engine, "load_model", load_peeking)
    loaded = engine.load(name="m", reason="asked", options=load_options(folder))
    loaded.close()
    assert not any("prepacked" in note for note in loaded.info.notes)


@pytest.mark.holds("Prepacked weights give the same rows")
@needs_onednn
@pytest.mark.usefixtures("always")
def test_minilm_keeps_its_rows(minilm_folder: Path) -> None:
    folder = model_folder.read(minilm_folder)
    sequences = batch(arbitrary((3, 100, 12, 37, 250, 41)))
    plain, prepacked = (
        selftest.choose_forward(load_model(folder, dtype=torch.float32), folder, prepacks=prepacks).forward(sequences)
        for prepacks in (False, True)
    )
    assert not torch.equal(plain, prepacked)  # else nothing was exchanged
    assert (plain - prepacked).abs().max() <= 1e-5


def test_a_broken_model_is_refused_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save("bert", tmp_path / "model")
    monkeypatch.setattr(selftest, "_disagreement", lambda *_: "is wrong")
    with pytest.raises(ModelError, match="is wrong"):
        engine.load(name="m", reason="asked", options=load_options(folder))

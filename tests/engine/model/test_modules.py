"""Modules after the pooling: what their files say, each way in which they can be wrong, and each activation."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Normalize
from torch import nn

from engine.model import model_folder, tasks
from engine.model.tasks import ACTIVATIONS
from engine.rows import with_numpy, with_torch
from engine.types import ModelError
from server.commands.inspect import inspect
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from tests.engine import engines
from tests.engine.cpu.engines import load
from tests.engine.engines import difference
from tests.engine.folder_files import change, write
from tests.engine.sentence_models import save_chain
from tests.engine.tiny_models import HIDDEN_SIZE

DENSE, WEIGHTS = "2_Dense/config.json", "2_Dense/model.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mean pooling, Dense, LayerNorm, Normalize."""
    modules = (Dense(HIDDEN_SIZE, 20), LayerNorm(20), Normalize())
    return save_chain(tmp_path_factory.mktemp("saved") / "model", "mean", *modules)


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    copied = tmp_path / "model"
    shutil.copytree(saved, copied)
    return copied


def refusal(folder: Path) -> str:
    """The message of the refusal, which must be one line."""
    return engines.refusal(lambda: with_numpy.load_modules(folder, model_folder.read(folder).steps))


def change_tensors(file: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)


def test_what_the_files_say(folder: Path) -> None:
    read = model_folder.read(folder)
    dense = tasks.Dense(folder="2_Dense", in_features=HIDDEN_SIZE, out_features=20, activation="Tanh")
    assert read.steps == (dense, tasks.LayerNorm(folder="3_LayerNorm", size=20))
    assert (read.normalize, read.hidden_size, read.dimensions) == (True, HIDDEN_SIZE, 20)
    assert read.notes[0] == (
        f"after the pooling: Dense {HIDDEN_SIZE} to 20, Tanh (2_Dense/config.json), "
        "then LayerNorm (3_LayerNorm/config.json)"
    )


def test_a_normalize_with_more_to_follow_is_computed(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    write(folder / "modules.json", [*modules[:2], modules[4], modules[2], modules[3]])
    read = model_folder.read(folder)
    assert (isinstance(read.steps[0], tasks.Normalize), len(read.steps), read.normalize) == (True, 3, False)


@pytest.mark.parametrize(
    ("name", "fields", "part"),
    [
        (DENSE, {"in_features": 31}, "needs rows of 31 numbers, but gets 32"),
        (DENSE, {"in_features": None}, "no in_features"),
        (DENSE, {"out_features": -3}, "'out_features'"),
        (DENSE, {"out_features": 21}, "3_LayerNorm/config.json needs rows of 20 numbers, but gets 21"),
        (DENSE, {"bias": "no"}, "'bias'"),
        (DENSE, {"bias": False}, "'linear.bias' too many"),
        (DENSE, {"use_residual": True}, "lacks the tensor 'residual.weight'"),
        (DENSE, {"activation_function": "torch.nn.modules.activation.Hardtanh"}, "Hardtanh"),
        (DENSE, {"activation_function": "own.Tanh"}, "'own.Tanh'"),
        (DENSE, {"activation_function": 3}, "'3'"),
        (DENSE, {"scale": 2.0}, f"'scale' in {DENSE}"),
        (DENSE, {"module_input_name": "token_embeddings"}, "'token_embeddings'"),
        (DENSE, {"module_output_name": "other"}, "'other'"),
        ("3_LayerNorm/config.json", {"dimension": None}, "no dimension"),
        ("3_LayerNorm/config.json", {"eps": 1e-12}, "'eps' in 3_LayerNorm/config.json"),
        ("4_Normalize/config.json", {"module_input_name": "token_embeddings"}, "'token_embeddings'"),
    ],
)
def test_a_wrong_field_is_named(folder: Path, name: str, fields: dict[str, Any], part: str) -> None:
    change(folder / name, **fields)
    assert part in refusal(folder)


@pytest.mark.parametrize(
    ("edit", "part"),
    [
        (lambda tensors: tensors.pop("linear.weight"), "lacks the tensor 'linear.weight'"),
        (lambda tensors: tensors.update(more=torch.ones(1)), "has a tensor 'more' too many"),
        (lambda tensors: tensors.update({"linear.weight": torch.ones(20, 31)}), "(20, 31)"),
        (lambda tensors: tensors["linear.weight"].fill_(torch.nan), "not finite"),
        (lambda tensors: tensors.update({"linear.bias": torch.ones(20, dtype=torch.int8)}), "can't be read"),
    ],
)
def test_wrong_tensors_are_named(folder: Path, edit: Callable[[Any], object], part: str) -> None:
    change_tensors(folder / WEIGHTS, edit)
    message = refusal(folder)
    assert part in message
    assert WEIGHTS in message


def test_an_engine_refuses_a_broken_head(folder: Path) -> None:
    change_tensors(folder / WEIGHTS, lambda tensors: tensors.pop("linear.weight"))
    with pytest.raises(ModelError, match="lacks the tensor"):
        load(folder)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_in_other_numbers(folder: Path, dtype: torch.dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS)
    rows = np.ones((3, HIDDEN_SIZE), np.float32)
    expected = torch.tanh(torch.from_numpy(rows) @ tensors["linear.weight"].float().T + tensors["linear.bias"].float())
    found = with_numpy.load_modules(folder, model_folder.read(folder).steps[:1])(rows)
    assert np.abs(found - expected.numpy()).max() <= 1e-6


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("others", [{}, {"use_residual": True}, {"bias": False}], ids=str)
def test_each_activation(activation: str, others: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Dense(8, 5, activation_function=getattr(nn, activation)(), **others)
    (tmp_path / "2_Dense").mkdir()
    module.save(str(tmp_path / "2_Dense"))
    step = tasks.Dense(
        folder="2_Dense",
        in_features=8,
        out_features=5,
        activation=activation,
        has_bias=others.get("bias", True),
        has_residual=others.get("use_residual", False),
    )
    rows = 9 * np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    with torch.inference_mode():
        expected = module({"sentence_embedding": torch.from_numpy(rows)})["sentence_embedding"].numpy()
        on_device = with_torch.load_modules(tmp_path, [step], device=torch.device("cpu"))(
            torch.from_numpy(rows)
        ).numpy()
    assert difference(with_numpy.load_modules(tmp_path, [step])(rows), expected) <= 1e-6
    assert difference(on_device, expected) <= 1e-6


def test_a_row_of_zeros_stays_zero() -> None:
    zeros = np.zeros((1, 4), np.float32)
    assert not with_numpy.RowModules([tasks.Normalize()], [{}])(zeros).any()


def test_inspect_shows_the_chain_and_its_files(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = ModelSettings(model_id=str(folder), engine="transformers", devices="cpu")
    assert inspect(Settings(models=(model,)), as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["dimensions"], found["sources"]["dimensions"]) == (20, "3_LayerNorm/config.json")
    assert (found["normalize"], found["pooling"]) == (True, "mean")
    assert "2_Dense/config.json" in found["notes"][0]
    files = [folder / "model.safetensors", folder / WEIGHTS, folder / "3_LayerNorm" / "model.safetensors"]
    assert sum(found["num_parameters"].values()) == sum(
        tensor.numel() for file in files for tensor in load_file(file).values()
    )


@pytest.mark.parametrize("offsets", [[0, 10**30], [-8, 8], [8, 0], [0, 1 << 40]])
def test_a_header_that_lies_is_refused(offsets: list[int], tmp_path: Path) -> None:
    """Before anything is read by it."""
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1, 2], "data_offsets": offsets}}).encode()
    (tmp_path / "linear.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    step = tasks.Dense(folder="linear.safetensors", in_features=2, out_features=1, has_bias=False)
    with pytest.raises(ModelError, match="can't be read"):
        with_numpy.load_modules(tmp_path, [step])


def test_a_step_that_is_a_file_names_it(tmp_path: Path) -> None:
    step = tasks.Dense(folder="linear.safetensors", in_features=2, out_features=3, has_bias=False, activation="Tanh")
    save_file({"weight": torch.ones(3, 2), "of another": torch.ones(1)}, tmp_path / "linear.safetensors")
    assert str(step) == "Dense 2 to 3, Tanh (linear.safetensors)"
    with pytest.raises(ModelError, match=r"^linear\.safetensors needs rows of 2 numbers"):
        tasks.output_size([step], 5)
    found = with_numpy.load_modules(tmp_path, [step])(np.ones((1, 2), np.float32))
    assert difference(found, np.full((1, 3), np.tanh(2), np.float32)) <= 1e-6

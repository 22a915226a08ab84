"""Weights added, dropped, renamed and reshaped: the rows are the model's own, or the start names the weight."""

import re
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.model.coverage import Use
from engine.types import ModelError
from tests.engine.engines import load
from tests.parity.architectures import ARCHITECTURES
from tests.parity.folders import save
from tests.parity.fuzzing import check_rows, engines_of, linked, rows_or_refusal

pytestmark = pytest.mark.holds("What a model is for")

_FILE = "model.safetensors"
_UNUSED = ("pooler.", "contact_head.")
# Of heads that embeddings do not need, and numbers that older versions of the library wrote down.
HARMLESS = ("cls.predictions.bias", "lm_head.weight", "qa_outputs.weight", "embeddings.position_ids")
COMMON = ("BERT", "Qwen3")
EACH = [
    pytest.param(name, marks=[] if name in COMMON else [pytest.mark.full], id=name.replace(" ", "_"))
    for name in ARCHITECTURES
]


def written(folder: Path, target: Path, tensors: dict[str, Tensor]) -> Path:
    linked(folder, target, _FILE)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, target / _FILE, {"format": "pt"})
    return target


def layer_of(tensors: dict[str, Tensor], draw: Random) -> str:
    """A weight of one of the layers."""
    return draw.choice([name for name in sorted(tensors) if re.search(r"\.\d+\.", name)])


@pytest.mark.parametrize("name", EACH)
def test_a_weight_too_many_is_refused_unless_it_is_of_a_head(name: str, tmp_path: Path) -> None:
    folder = save(name, Use.EMBED, tmp_path / "model")
    tensors = load_file(folder / _FILE)
    harmless = written(folder, tmp_path / "more", tensors | {key: torch.ones(3) for key in HARMLESS})
    inside = f"{layer_of(tensors, Random(name)).rpartition('.')[0]}.distance_embedding.weight"
    harmful = written(folder, tmp_path / "inside", {**tensors, inside: torch.ones(3)})
    for engine in engines_of(name):
        served = rows_or_refusal(name, harmless, engine)
        assert not isinstance(served, str), served
        check_rows(name, served, folder)
        refused = rows_or_refusal(name, harmful, engine)
        assert isinstance(refused, str), f"{inside} was passed over"
        assert "distance_embedding" in refused


@pytest.mark.parametrize("name", EACH)
def test_a_weight_that_is_missing_renamed_or_of_another_shape_is_refused(name: str, tmp_path: Path) -> None:
    folder = save(name, Use.EMBED, tmp_path / "model")
    tensors = load_file(folder / _FILE)
    draw = Random(name)
    changed = layer_of(tensors, draw)
    others = {key: tensor for key, tensor in tensors.items() if key != changed}
    copies = {
        "dropped": others,
        "renamed": {**others, re.sub(r"\.\d+\.", ".7.", changed, count=1): tensors[changed]},
        "shorter": {**others, changed: tensors[changed][:-1]},
        "longer": {**others, changed: torch.cat([tensors[changed], tensors[changed][:1]])},
    }
    for kind, content in copies.items():
        copy = written(folder, tmp_path / kind, content)
        for engine in engines_of(name):
            refused = rows_or_refusal(name, copy, engine)
            assert isinstance(refused, str), f"{changed}, {kind}, was passed over"
            assert "weight" in refused or "tensor" in refused


@pytest.mark.full
@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_any_weight_may_be_missing(name: str, tmp_path: Path) -> None:
    folder = save(name, Use.EMBED, tmp_path / "model")
    tensors = load_file(folder / _FILE)
    for number, dropped in enumerate(Random(name).sample(sorted(tensors), 6)):
        others = {key: tensor for key, tensor in tensors.items() if key != dropped}
        copy = written(folder, tmp_path / str(number), others)
        for engine in engines_of(name):
            served = rows_or_refusal(name, copy, engine)
            if not isinstance(served, str):
                assert any(part in dropped for part in _UNUSED), f"{dropped} was passed over"
                check_rows(name, served, folder)


def test_the_second_head_of_pre_training_is_no_part_of_a_sparse_model(tmp_path: Path) -> None:
    folder = save("BERT", Use.SPARSE, tmp_path / "model")
    more = {"cls.seq_relationship.weight": torch.ones(2, 3), "cls.seq_relationship.bias": torch.ones(2)}
    load("transformers", written(folder, tmp_path / "more", load_file(folder / _FILE) | more)).close()
    wrong = {"cls.predictions.transform.gate.weight": torch.ones(2)}
    with pytest.raises(ModelError, match=r"'cls\.predictions\.transform\.gate\.weight'"):
        load("transformers", written(folder, tmp_path / "wrong", load_file(folder / _FILE) | wrong))


def test_biases_of_nomics_code_that_the_library_lacks_are_refused(tmp_path: Path) -> None:
    folder = save("NomicBERT", Use.EMBED, tmp_path / "model")
    tensors = load_file(folder / _FILE)
    gate = next(name for name in tensors if name.endswith("mlp.fc11.weight"))
    bias = {gate.replace(".weight", ".bias"): torch.ones(tensors[gate].shape[0])}
    for engine in engines_of("NomicBERT"):
        refused = rows_or_refusal("NomicBERT", written(folder, tmp_path / engine, tensors | bias), engine)
        assert isinstance(refused, str), "the bias was passed over"
        assert ".bias" in refused

"""What has the same fingerprint and what another one: weights, tokenizer, settings, compute type."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.model import model_folder
from engine.model.identity import Identity, identify
from engine.model.known_prompts import with_known
from engine.model.sentence_files import CONFIG
from tests.engine.folder_files import change, write
from tests.engine.tiny_models import save

pytestmark = pytest.mark.holds("Fingerprints")

FLAGS = {"default_prompt": ""}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    save("bert", folder)
    write(folder / "tokenizer.json", {"model": {"vocab": {"a": 0}}})
    write(folder / "tokenizer_config.json", {"do_lower_case": True, "name_or_path": "/somewhere"})
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "elsewhere")


def identity(folder: Path, *, flags: dict[str, str] = FLAGS, **changes: Any) -> Identity:
    return identify(dataclasses.replace(model_folder.read(folder), **changes), flags=flags)


def test_neither_path_nor_place_in_files_nor_what_has_no_effect_counts(saved: Path, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(tensors)}
    for file in set(names.values()):
        save_file({name: tensors[name] for name in names if names[name] == file}, folder / file)
    write(folder / "model.safetensors.index.json", {"weight_map": names})
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", {**config, "transformers_version": "9.9.9", "hidden_dropout_prob": 0.5})
    change(folder / "tokenizer_config.json", name_or_path="/another")
    assert identity(folder) == identity(saved)


def test_the_models_name_which_tells_the_cards_prompts_does_not_count(saved: Path) -> None:
    named = with_known(model_folder.read(saved), "intfloat/e5-small-v2")
    assert named.prompts
    assert identify(named, flags=FLAGS) == identity(saved)


def other_weight(folder: Path) -> None:
    """One tensor of many, as a merged adapter changes it."""
    tensors = load_file(folder / "model.safetensors")
    name = "encoder.layer.1.attention.self.query.weight"
    save_file({**tensors, name: tensors[name] + 0.01}, folder / "model.safetensors")


def other_dtype(folder: Path) -> None:
    tensors = {name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "part"),
    [
        (other_weight, "weights"),
        (other_dtype, "weights"),
        (lambda folder: change(folder / "config.json", layer_norm_eps=1e-3), "settings"),
        (lambda folder: write(folder / "tokenizer.json", {"model": {"vocab": {"b": 0}}}), "tokenizer"),
        (lambda folder: change(folder / "tokenizer_config.json", do_lower_case=False), "tokenizer"),
        (lambda folder: write(folder / "added_tokens.json", {"b": 1}), "tokenizer"),
        (lambda folder: change(folder / "config.json", tokenizer_class="RobertaTokenizer"), "tokenizer"),
        (lambda folder: (folder / "chat_template.jinja").write_text("{{ messages }}"), "tokenizer"),
        (lambda folder: write(folder / CONFIG, {"prompts": {"query": "Q: "}}), "settings"),
    ],
    ids=[
        *("a weight", "dtype", "config.json", "tokenizer.json", "tokenizer_config.json", "added tokens"),
        *("tokenizer class", "chat template", "prompts"),
    ],
)
def test_what_changes_rows_changes_its_part(spoil: Any, part: str, saved: Path, folder: Path) -> None:
    spoil(folder)
    before, after = dataclasses.asdict(identity(saved)), dataclasses.asdict(identity(folder))
    assert [name for name in before if before[name] != after[name]] == [part]


@pytest.mark.parametrize(
    "changes", [{"poolings": ("cls",)}, {"max_seqlen": 8}, {"normalize": True}, {"do_lower_case": True}]
)
def test_settings_count(changes: dict[str, Any], saved: Path) -> None:
    assert identity(saved, **changes).settings != identity(saved).settings
    assert identity(saved, flags={"default_prompt": "Q: "}).settings != identity(saved).settings


def test_how_config_json_is_understood_counts(saved: Path) -> None:
    config = model_folder.read(saved).config
    assert identity(saved, config={**config, "is_causal": False}).settings != identity(saved).settings


def test_every_byte_of_small_weights_counts(folder: Path) -> None:
    before, name = identity(folder), "embeddings.word_embeddings.weight"
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = torch.zeros(len(tensors[name]), 3200)
    ids = set()
    for place in range(0, tensors[name].numel(), 64_000):
        tensors[name].view(-1)[place] = 1
        save_file(tensors, folder / "model.safetensors")
        ids.add(identity(folder).weights)
    assert before.weights not in ids
    assert len(ids) == len(range(0, tensors[name].numel(), 64_000)) > 1


def test_large_tensors_are_sampled_from_end_to_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.model.identity._WHOLE", 0)
    before = identity(folder)
    name = "embeddings.word_embeddings.weight"
    for place in (0, -1):
        tensors = load_file(folder / "model.safetensors")
        tensors[name] = torch.zeros(len(tensors[name]), 320)
        tensors[name].view(-1)[place] = 1
        save_file(tensors, folder / "model.safetensors")
        assert identity(folder) != before
        before = identity(folder)


def test_the_compute_type_counts_and_the_engine_if_it_quantizes(saved: Path) -> None:
    found = identity(saved)
    plain, other = (found.fingerprint(dtype="float32", engine=engine) for engine in ("openvino", "transformers"))
    assert plain == other
    ids = {
        found.fingerprint(dtype=dtype, engine=engine)["id"]
        for dtype in ("float32", "bfloat16", "fp8")
        for engine in ("fused", "tensorrt-llm")
    }
    assert len(ids) == 4
    assert {len(one) for one in ids} == {16}


def test_it_is_that_of_the_last_release(minilm_folder: Path) -> None:
    """A literal: when it changes, every stored index looks like another model's, which the changelog must say."""
    found = identity(minilm_folder)
    assert dataclasses.asdict(found) == {
        "weights": "6a18e3c1b21975ed",
        "tokenizer": "2dcd6a66ba20c1ac",
        "settings": "27073f06fc9fc133",
    }


def test_the_fake_engine_reads_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    read = model_folder.read(folder, needs_weights=False)
    assert identify(read, flags=FLAGS, stand_in="fake 4").weights == "fake 4"

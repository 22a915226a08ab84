"""`embedline inspect`: facts with their sources, as text and as JSON, and one line where a model can't be served."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from engine import registry
from engine.machine.cuda_driver import Cuda, Gpu
from engine.types import ModelError
from server.commands import inspect as command
from server.commands.inspect import inspect
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from tests.engine.folder_files import change
from tests.server.commands.doctor_runs import inspected as facts
from tests.server_e2e.expected import minilm

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the real model, to be changed."""
    copied = tmp_path / "model"
    shutil.copytree(minilm(), copied)
    return copied


def settings(folder: Path, **model: Any) -> Settings:
    return Settings(models=(ModelSettings(model_id=str(folder), **model),))


def test_the_default_model(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, minilm(), engine="transformers")

    expected = {
        "folder": str(minilm()),
        "architecture": "bert",
        "pooling": "mean",
        "normalize": True,
        "max_seqlen": 256,
        "dimensions": 384,
        "vocab_size": 30522,
        "tokenizer": "WordPiece",
        "prompts": {},
        "default_prompt": None,
        "engine": "transformers",
        "warnings": [],
    }
    assert {name: found[name] for name in expected} == expected
    assert found["memory_bytes"] == 4 * sum(found["num_parameters"].values())
    assert found["sources"]["folder"] == "local folder"
    assert found["sources"]["pooling"] == "1_Pooling/config.json"
    assert found["sources"]["max_seqlen"] == "sentence_bert_config.json"
    assert found["sources"]["engine"] == "--engine transformers"


@pytest.mark.holds("Prompts")
def test_flags_outrank_files_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(
        capsys, minilm(), pooling="cls", max_input_length=32, default_prompt="query: ", dtype="bfloat16", engine="fake"
    )

    assert (found["pooling"], found["sources"]["pooling"]) == ("cls", "--pooling")
    assert (found["max_seqlen"], found["sources"]["max_seqlen"]) == (32, "--max-input-length")
    assert (found["default_prompt"], found["sources"]["default_prompt"]) == ("query: ", "--default-prompt")
    assert found["memory_bytes"] == 2 * sum(found["num_parameters"].values())
    assert any("--engine fake" in warning for warning in found["warnings"])


def test_a_length_that_the_architecture_does_not_have(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    change(folder / "sentence_bert_config.json", max_seq_length=1000)

    found = facts(capsys, folder)

    assert (found["max_seqlen"], found["sources"]["max_seqlen"]) == (512, "config.json")
    assert any("512" in note for note in found["notes"])


@pytest.mark.holds("Prompts")
def test_prompts(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    change(folder / "config_sentence_transformers.json", prompts={"query": "query: ", "passage": "passage: "})

    assert any("--default-prompt-name" in warning for warning in facts(capsys, folder)["warnings"])
    chosen = facts(capsys, folder, default_prompt_name="query")
    assert (chosen["default_prompt"], chosen["warnings"]) == ("query: ", [])


def test_how_weights_are_stored(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert facts(capsys, folder)["stored"] == "plain"
    change(folder / "config.json", quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})

    assert facts(capsys, folder, engine="fused", devices="cpu")["stored"] == "FP8 (fp8, scales per block)"
    with pytest.raises(ModelError, match="only the fused engine reads"):
        inspect(settings(folder), as_json=False)


def test_text_has_the_same_facts(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    change(folder / "config_sentence_transformers.json", prompts={"query": "query: ", "passage": "passage: "})

    assert inspect(settings(folder), as_json=False) == 0

    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "pooling mean (1_Pooling/config.json)" in lines
    assert "max seqlen 256 (sentence_bert_config.json)" in lines
    assert "prompts query: 'query: ' (config_sentence_transformers.json)" in lines
    assert "passage: 'passage: '" in lines
    assert lines[-1].startswith("warning: ")


def test_what_a_start_would_find_on_this_machine(
    capsys: pytest.CaptureFixture[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "tried_by_auto", lambda _: {"fused": False, "openvino": True, "transformers": True})

    found = facts(capsys, minilm())
    assert found["engines"] == [
        "fused: not installed",
        "openvino: installed, tried first",
        "transformers: installed, tried if none before it can serve the model",
    ]
    assert found["compiled_cache"] == str(cache)
    assert "engines" not in facts(capsys, minilm(), engine="transformers")
    assert "compiled_cache" not in facts(capsys, minilm(), engine="fake")


def test_the_engines_of_auto_are_looked_for() -> None:
    assert registry.tried_by_auto("cpu")["transformers"] is True
    assert list(registry.tried_by_auto("cuda")) == ["fused", "transformers"]


def test_devices_and_why(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    small = Gpu(0, "NVIDIA A2", (8, 6), 1 << 20)
    monkeypatch.setattr(command, "find_cuda", lambda _: Cuda((small,)))

    found = facts(capsys, minilm(), engine="transformers")
    assert found["devices"] == ["cuda:0"]
    assert found["sources"]["devices"] == "--devices auto: cuda:0 (NVIDIA A2, compute capability 8.6)"
    assert found["memory_bytes"] == 2 * sum(found["num_parameters"].values())  # in bfloat16
    assert found["warnings"] == ["the weights are larger than the memory of cuda:0"]

    found = facts(capsys, minilm(), engine="transformers", devices="cpu")
    assert (found["devices"], found["sources"]["devices"], found["warnings"]) == (["cpu"], "--devices cpu", [])


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_what_cannot_be_served_is_said_in_one_line(file: str, folder: Path) -> None:
    (folder / file).unlink()

    with pytest.raises(ModelError) as refused:
        inspect(settings(folder), as_json=False)

    assert file in str(refused.value)
    assert "\n" not in str(refused.value)


def test_weights_that_a_start_would_convert_are_left_alone(
    folder: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    found = facts(capsys, folder)
    assert inspect(settings(folder), as_json=False) == 0

    name, weights = capsys.readouterr().out.splitlines()
    assert found["name"] == name == str(folder)
    assert found["weights"] in weights
    assert "(pytorch_model.bin, 87 MiB): a start converts them into its cache first, and so does embed" in weights
    assert not (cache / "converted").exists()
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is not read, .*: embedline convert "):
        inspect(settings(folder, convert="never"), as_json=False)

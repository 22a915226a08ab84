"""`embedline verify`: figures and verdict as text and as JSON, exit codes, and one line for what can't be verified."""

import json
import re
import string
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from engine.fused.quantization import measures
from engine.machine import cores
from engine.machine.cuda_driver import Cuda, Gpu
from engine.types import ModelError
from server.features.verify import comparison as verify_command
from server.features.verify.comparison import verify
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from tests.engine.tiny_models import SCORING_SEQUENCES, TAMED, VOCAB_SIZE, save_tame, save_whole, tame
from tests.server_e2e.expected import minilm

pytestmark = pytest.mark.holds("Engines on a GPU")

BAD = "layers.1.down"
FP8 = ("--quantization", "fp8")


@pytest.fixture(autouse=True)
def _of_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable", lambda: 1)
    for name in ("EMBEDLINE_DEVICES", "EMBEDLINE_ENGINE", "EMBEDLINE_QUANTIZATION", "DTYPE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save_tiny("bert", tmp_path / "model")


def save_tiny(family: str, folder: Path) -> Path:
    """With a tokenizer of letters, for there must be one."""
    return save_tame(family, with_letters(folder))


def with_letters(folder: Path) -> Path:
    """A folder with a tokenizer of letters alone."""
    letters = {letter: number for number, letter in enumerate(string.printable, 5)}
    assert len(letters) + 5 <= VOCAB_SIZE
    tokenizer = Tokenizer(WordLevel({"[UNK]": 4, **letters}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def spoil(folder: Path) -> None:
    """Numbers so large between up and down of layer 1 that FP8 has nothing left for the others of a row. Without FP8
    they do no harm, as down takes them back."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    layer = "encoder.layer.1"
    tensors[f"{layer}.intermediate.dense.bias"][0] = 1e6
    tensors[f"{layer}.output.dense.weight"] /= TAMED  # so that the others count
    tensors[f"{layer}.output.dense.weight"][:, 0] /= 1e6
    save_file(tensors, file, metadata={"format": "pt"})


def settings(model: Path | str, **others: Any) -> Settings:
    return Settings(models=(ModelSettings(model_id=str(model), **{"devices": "cpu", "quantization": "fp8", **others}),))


def facts(capsys: pytest.CaptureFixture[str], model: Path, *, code: int = 0, **others: Any) -> Any:
    assert verify(settings(model, **others), as_json=True) == code
    return json.loads(capsys.readouterr().out)


def lines(capsys: pytest.CaptureFixture[str], model: Path, *, code: int = 0) -> list[str]:
    assert verify(settings(model), as_json=False) == code
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_a_good_model_in_json_and_in_text(capsys: pytest.CaptureFixture[str], tiny: Path, cache: Path) -> None:
    found = facts(capsys, tiny)
    expected: dict[str, Any] = {
        "model": str(tiny),
        "device": "cpu",
        "gpu": None,
        "quantization": "fp8",
        "scheme": "fp8_row",
        "measured": "anew",
        "num_texts": 167,
        "limits": {"pooled": {"median": 0.998, "p1": 0.995, "overlap": 0.95}},
        "reverted": [],
        "passed": True,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["served"] == found["all_layers"]
    served, floor = (found[name]["pooled"] for name in ("served", "noise_floor"))
    assert set(served) == set(floor) == {"median", "p1", "minimum", "overlap"}
    assert 0.995 < served["median"] < 1
    assert len(found["quantized"]) == 9
    assert list(cache.rglob("*.safetensors")) == []

    shown = lines(capsys, tiny)
    assert shown[0] == str(tiny)
    assert {"device cpu", "gpu none", "quantization fp8 (fp8_row)"} <= set(shown)
    assert f"texts 167, {found['num_tokens']:,} tokens, the longest of {found['max_tokens']}; measured now" in shown
    (limits,) = (line for line in shown if line.startswith("limits "))
    assert (
        limits == "limits cosine median 0.998 or more, 1st percentile 0.995 or more, nearest ten the same 0.95 or more"
    )
    assert any(line.startswith("noise floor cosine median ") for line in shown)
    (figures,) = (line for line in shown if line.startswith("all 9 layers cosine median "))
    for name in ("median", "p1", "minimum"):
        assert f"{served[name]:.5f}" in figures
    assert figures.endswith("within the limits")
    assert "served in fp8, all 9 linear layers, with --engine fused --devices cpu --quantization fp8" in shown
    assert shown[-1].startswith("with auto not quantized: FP8 needs a GPU")


def test_a_reranker_is_measured_by_its_scores(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tame(save_whole("bert", with_letters(tmp_path / "model"), SCORING_SEQUENCES, num_labels=1))
    found = facts(capsys, folder)
    assert found["num_texts"] == 191
    limits = found["limits"]["logits"]
    assert set(limits) == {"median_change", "largest_change", "rank_correlation"}
    floor = found["noise_floor"]["logits"]
    for name, usual in (("median_change", 0.002), ("largest_change", 0.02)):
        assert limits[name] in (usual, pytest.approx(2 * floor[name]))
        assert found["served"]["logits"][name] <= limits[name]
    shown = lines(capsys, folder)
    assert any(line.startswith("limits median change 0.00") and "largest change 0.0" in line for line in shown)


@pytest.mark.full
def test_a_bad_layer_is_named(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    spoil(tiny)
    found = facts(capsys, tiny)
    assert BAD in found["reverted"]
    assert found["all_layers"]["pooled"]["median"] < 0.99
    assert found["served"]["pooled"]["median"] >= 0.998
    assert found["passed"]
    shown = lines(capsys, tiny)
    assert any(re.fullmatch(r"(plain again )?layers\.1: .*\bdown", line) for line in shown)
    assert any(line.startswith("all 9 layers") and line.endswith("beyond the limits") for line in shown)
    num_quantized = len(found["quantized"])
    assert any(line.startswith(f"the other {num_quantized} ") and "within" in line for line in shown)
    assert any(line.startswith(f"served in fp8, {num_quantized} of 9 linear layers") for line in shown)


@pytest.mark.full
def test_where_nothing_is_left_the_code_says_so(
    capsys: pytest.CaptureFixture[str], tiny: Path, called: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "MIN_MEDIAN", 1.1)  # no layer can
    assert called("verify", str(tiny), "--devices", "cpu", *FP8, "--json") == 1
    capsys.readouterr()
    found = facts(capsys, tiny, code=1)
    assert (found["passed"], found["served"], found["quantized"], len(found["reverted"])) == (False, None, [], 9)
    shown = lines(capsys, tiny, code=1)
    assert "served with plain weights, also with --engine fused --devices cpu --quantization fp8" in shown
    assert not any(line.startswith("the other") for line in shown)


def test_the_command_itself(capsys: pytest.CaptureFixture[str], tiny: Path, called: Callable[..., object]) -> None:
    assert called("verify", str(tiny), "--devices", "cpu", *FP8, "--dtype", "bfloat16", "--json") == 0
    captured = capsys.readouterr()
    assert "plain weights in bfloat16" in json.loads(captured.out)["against"]
    assert captured.err == ""


def test_another_engine_can_not_be_verified(tiny: Path) -> None:
    with pytest.raises(SettingsError, match="--engine openvino can't be verified with fp8; fused can"):
        verify(settings(tiny, engine="openvino"), as_json=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("/nowhere/at/all", "--devices", "cpu"), "/nowhere/at/all"),
        (("{tiny}", *FP8, "--devices", "cpu", "--dtype", "float16"), "--dtype float16"),
        (("{tiny}", *FP8), "--engine fused --devices cpu is slow, for checks"),
        (("{tiny}", "--devices", "cuda:0"), "--devices cuda:0: there is no CUDA driver here"),
        (("{tiny}", "--port", "1"), "--port"),
        ((), "MODEL"),
    ],
    ids=str,
)
def test_what_is_wrong_is_one_line(
    arguments: tuple[str, ...],
    words: str,
    tiny: Path,
    capsys: pytest.CaptureFixture[str],
    called: Callable[..., object],
) -> None:
    assert called("verify", *(argument.format(tiny=tiny) for argument in arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"embedline: [^\n]+\n", captured.err)
    assert words in captured.err


def test_an_architecture_that_the_engine_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"the fused engine does not know the architecture 'gpt2'"):
        verify(settings(save_tiny("gpt2", tmp_path / "gpt2")), as_json=False)


def test_a_model_without_a_tokenizer(tiny: Path) -> None:
    (tiny / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        verify(settings(tiny), as_json=False)


def test_rows_that_are_not_finite_before_anything_is_quantized(tiny: Path) -> None:
    tensors = load_file(tiny / "model.safetensors")
    tensors["encoder.layer.1.output.dense.bias"][0] = torch.nan
    save_file(tensors, tiny / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="not finite before anything is quantized"):
        verify(settings(tiny), as_json=False)


@pytest.mark.parametrize("devices", ["auto", "cuda:0"])
def test_a_gpu_without_fp8(devices: str, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ampere = Gpu(0, "NVIDIA A10", (8, 6), 24 << 30)
    monkeypatch.setattr(verify_command, "find_cuda", lambda _: Cuda((ampere,)))
    with pytest.raises(ModelError, match=r"NVIDIA A10.* has no FP8, which begins at 8\.9"):
        verify(settings(tiny, devices=devices), as_json=False)


def test_a_package_that_is_not_there(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "engine.fused.quantization", None)
    with pytest.raises(
        ModelError, match=r"needs engine.fused.quantization, which is not installed: pip install 'embedline\[cuda\]'"
    ):
        verify(settings(tiny), as_json=False)


@pytest.mark.full
def test_the_default_model(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, minilm(), max_input_length=64)
    assert found["passed"]
    assert 0.996 < found["all_layers"]["pooled"]["median"] < 0.998  # so some go back
    assert 0.990 < found["all_layers"]["pooled"]["p1"] < 0.995
    assert len(found["quantized"]) + len(found["reverted"]) == 18
    assert 0 < len(found["quantized"]) < 18
    assert found["served"]["pooled"]["median"] >= 0.998
    assert found["served"]["pooled"]["p1"] >= 0.995
    assert found["served"]["pooled"]["overlap"] > 0.95

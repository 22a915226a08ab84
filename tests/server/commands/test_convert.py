"""`embedline convert` as it is called: what it prints, one line for what is wrong, exit codes, and that SIGTERM ends it
in order."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.convert.conversion import Conversion, ConvertedTarget
from engine.model import model_folder
from server.features.convert import command as convert_command
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from tests.engine.convert.pickles import Touch, pickled, small
from tests.engine.convert.test_classifier import NO, YES, reranker
from tests.server.commands.doctor_runs import ended as ended_of


def test_a_folder_that_a_server_refuses_becomes_one_that_it_takes(
    tmp_path: Path, called: Callable[..., object], capfd: pytest.CaptureFixture[str]
) -> None:
    tensors = pickled("bert", tmp_path / "a model")
    out = tmp_path / "out"

    assert not called("convert", str(tmp_path / "a model"), str(out))

    said = capfd.readouterr()
    assert said.out.splitlines()[:2] == [str(out), f"  model.safetensors: {len(tensors)} tensors, 0.1 MiB"]
    assert "Traceback" not in said.err
    assert model_folder.read(out).architecture == "bert"
    assert load_file(out / "model.safetensors").keys() == tensors.keys()


@pytest.mark.full
def test_a_reranker_becomes_a_classifier(
    tmp_path: Path, called: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    assert not called("convert", str(reranker(tmp_path / "model")), str(out), "--as-classifier")

    assert capsys.readouterr().out.splitlines() == [
        str(out),
        f"  score.weight: token {YES} less token {NO}",
        "  embedline puts pairs into the template of Qwen3-Reranker; with another server, the client must do that",
    ]
    assert model_folder.read(out).task == "rerank"

    assert called("convert", str(out), str(tmp_path / "another"), "--as-classifier") == 2

    again = capsys.readouterr()
    assert again.out == ""
    assert re.fullmatch(r"embedline: --as-classifier is for generative rerankers[^\n]+\n", again.err)


def test_what_is_wrong_is_one_line(
    tmp_path: Path, called: Callable[..., object], capfd: pytest.CaptureFixture[str]
) -> None:
    folder, canary = small(tmp_path / "model"), tmp_path / "canary"
    torch.save({"a": Touch(canary)}, folder / "pytorch_model.bin")

    assert called("convert", str(folder), str(tmp_path / "out")) == 2

    said = capfd.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"embedline: pytorch_model\.bin is refused: [^\n]+\n", said.err)
    assert sorted(tmp_path.iterdir()) == [folder]


def test_a_process_that_could_reach_the_network_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    converted = ConvertedTarget("model", ("model.safetensors",), 3, 3 << 20)
    done = Conversion(tmp_path / "out", (converted,), 2, ("training_args.bin",), without_network=False)
    monkeypatch.setattr("engine.convert.conversion.convert", lambda *_: done)

    convert_command.convert(str(tmp_path), str(tmp_path / "out"))

    captured = capsys.readouterr()
    assert re.fullmatch(r"embedline: [^\n]+could reach the network[^\n]+\n", captured.err)
    assert captured.out.splitlines() == [
        str(tmp_path / "out"),
        "  model.safetensors: 3 tensors, 3.0 MiB",
        "  2 more files as they were",
        "  left out: training_args.bin",
    ]


@pytest.mark.parametrize(("flags", "makes"), [((), "_without_pickles"), (("--as-classifier",), "_classifier")])
def test_arguments_and_flags(
    flags: tuple[str, ...],
    makes: str,
    tmp_path: Path,
    called: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[tuple[Settings, Path]] = []

    def make(*given: Any) -> list[str]:
        asked.append(given)
        return ["made"]

    out = tmp_path / "out"
    for name in ("MODEL_ID", "REVISION", "HF_TOKEN", "HF_API_TOKEN", "HUGGINGFACE_HUB_CACHE", "EMBEDLINE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(convert_command, makes, make)
    assert not called("convert", "a/model", str(out), *flags, "--revision", "v1", "--hf-token", "hf")
    assert capsys.readouterr().out == "made\n"
    assert asked == [(Settings(models=(ModelSettings(model_id="a/model", revision="v1"),), hf_token="hf"), out)]
    assert called("convert", "a/model") == 2
    assert called("convert", "a/model", "out", "--port", "1") == 2
    assert "--port" in capsys.readouterr().err


def test_out_is_checked_before_anything_is_fetched(
    tmp_path: Path,
    called: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("engine.store.model_source.resolve", lambda *_, **__: pytest.fail("fetched"))
    (tmp_path / "mine").touch()
    assert called("convert", "a/model", str(tmp_path)) == 2
    assert "is not overwritten" in capsys.readouterr().err


SENT_TO_ITSELF = """
import os, signal
from server.commands.model_copies import clean_exit_on_sigterm
before = signal.getsignal(signal.SIGTERM)
try:
    with clean_exit_on_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
except SystemExit as ended:
    print(ended.code, signal.getsignal(signal.SIGTERM) is before)
"""


def test_sigterm_ends_it_as_an_exception_does() -> None:
    """In a process of its own: OpenVINO leaves the thread that loads it with a stack for signals that can't be used."""
    ended = ended_of(code=SENT_TO_ITSELF)
    assert (ended.stdout, ended.stderr) == ("143 True\n", "")

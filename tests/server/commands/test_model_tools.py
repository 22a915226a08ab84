"""What `embedline quantize` takes: arguments, flags, and where OUT may be."""

import sys
from pathlib import Path

import pytest

from server import cli
from server.commands import model_copies
from server.settings.model import ModelSettings
from server.settings.settings import Settings

COMMANDS = ["quantize"]


def exit_code(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    monkeypatch.setattr(sys, "argv", ["embedline", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


@pytest.mark.parametrize("command", COMMANDS)
def test_arguments_and_flags(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[tuple[Settings, str]] = []

    def run(settings: Settings, out: str) -> int:
        asked.append((settings, out))
        return 0

    monkeypatch.setattr(f"server.commands.model_copies.{command}", run)
    for name in ("MODEL_ID", "REVISION", "HF_TOKEN", "HF_API_TOKEN", "HUGGINGFACE_HUB_CACHE", "EMBEDLINE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert exit_code(monkeypatch, command, "a/model", "out", "--revision", "v1", "--hf-token", "hf") == 0
    settings = Settings(models=(ModelSettings(model_id="a/model", revision="v1"),), hf_token="hf")
    assert asked == [(settings, "out")]
    assert exit_code(monkeypatch, command, "a/model") == 2
    assert exit_code(monkeypatch, command, "a/model", "out", "--port", "1") == 2
    assert "--port" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_out_is_checked_before_anything_is_fetched(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(model_copies, "resolve", lambda *_, **__: pytest.fail("fetched"))
    (tmp_path / "mine").touch()
    assert exit_code(monkeypatch, command, "a/model", str(tmp_path)) == 2
    assert "is not overwritten" in capsys.readouterr().err

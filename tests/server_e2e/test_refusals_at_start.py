"""What can't be served is said in one line, with exit code 2, before any process is started."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server_e2e.expected import minilm
from tests.server_e2e.running import PATIENCE, ROOT
from tests.tiers import full


def start(*flags: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "embedline", "serve", "--port", "0", "--prometheus-port", "0", *flags],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def set_fields(file: Path, **fields: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def unknown_architecture(folder: Path) -> None:
    set_fields(folder / "config.json", model_type="perceptron-9000")


def unknown_pooling(folder: Path) -> None:
    file = folder / "1_Pooling" / "config.json"
    fields = dict.fromkeys(json.loads(file.read_text()), False)
    file.write_text(json.dumps({**fields, "word_embedding_dimension": 384, "pooling_mode_median_tokens": True}))


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def remote_code(folder: Path) -> None:
    set_fields(folder / "config.json", model_type="someones-own", auto_map={"AutoModel": "modeling_canary.Canary"})
    (folder / "modeling_canary.py").write_text(f"open({str(folder / 'canary')!r}, 'w')\n")


@pytest.mark.holds("Shutdown")
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (unknown_architecture, "perceptron-9000"),
        (remote_code, "auto_map"),
        *full((unknown_pooling, "pooling"), (no_tokenizer, "tokenizer.json")),
    ],
)
def test_a_model_that_cannot_be_served(spoil: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(minilm(), folder)
    spoil(folder)

    ended = start("--model-id", str(folder), folder=tmp_path)

    lines = [line for line in ended.stderr.splitlines() if " INFO " not in line]
    assert ended.returncode == 2, ended.stderr
    assert words in lines[-1]
    assert "Traceback" not in ended.stderr
    assert not (folder / "canary").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--engine", "steam"), "--engine"),
        (("--devices", "cuda:99"), "--devices"),
        (("--config", "/nope.toml"), "/nope.toml"),
        *full((("--engine", "fake", "--fake-fault", "melt@moon"), "--fake-fault")),
    ],
)
def test_a_setting_that_cannot_be(flags: tuple[str, ...], words: str, tmp_path: Path) -> None:
    ended = start(*flags, folder=tmp_path)

    assert ended.returncode == 2, ended.stderr
    assert words in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr

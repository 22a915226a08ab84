"""The example of docs/adapters.md: an adapter made by PEFT, served beside its base, with the rows of PEFT."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.documents import ROOT, Example, examples
from tests.server_e2e.expected import minilm
from tests.server_e2e.running import Server, serving

PAGE = (ROOT / "docs" / "adapters.md").read_text()
TEXT = "The lessee shall keep the roof in repair."
COMMIT = "0" * 40


@pytest.fixture
def hub(tmp_path: Path) -> dict[str, str]:
    """Variables of a hub's cache that has the model under its own name."""
    repository = tmp_path / "hub" / "models--sentence-transformers--all-MiniLM-L6-v2"
    (repository / "snapshots").mkdir(parents=True)
    (repository / "snapshots" / COMMIT).symlink_to(minilm())
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return {"HF_HUB_CACHE": str(repository.parent), "HF_HUB_OFFLINE": "1"}


def run(example: Example, folder: Path, variables: dict[str, str], port: int = 0) -> str:
    code = example.code.replace("localhost:8080", f"localhost:{port}")
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return ran.stdout


def flags(example: Example) -> list[str]:
    command, serve, *rest = shlex.split(example.code)
    assert (command, serve) == ("embedline", "serve")
    return rest


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:`is_gradient:FutureWarning")  # of PEFT itself
@pytest.mark.holds("Adapters")
@pytest.mark.parametrize("engine", ["transformers", "openvino"])
def test_the_examples_print_what_they_say(engine: str, tmp_path: Path, hub: dict[str, str]) -> None:
    make, serve, ask, _, merged = examples(PAGE)
    run(make, tmp_path, hub)
    expected = rows_of_peft(tmp_path / "law")
    with serving(*flags(serve), "--engine", engine, folder=tmp_path, environment=hub) as server:
        assert run(ask, tmp_path, hub, server.port) == ask.output
        assert np.abs(row(server, "law") - expected).max() < 1e-5
        assert np.abs(row(server, "minilm") - expected).max() > 0.01
    with serving(*flags(merged), "--engine", engine, folder=tmp_path, environment=hub) as server:
        assert np.abs(row(server, "law") - expected).max() < 1e-5


def row(server: Server, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    reply = server.embed(TEXT, model=name, encoding_format="bytes")
    assert reply.status == 200, reply.body
    return np.frombuffer(reply.body, "<f4")


def rows_of_peft(folder: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The row of the text by PEFT and transformers themselves."""
    from peft import PeftModel
    from transformers import AutoModel, AutoTokenizer

    model = PeftModel.from_pretrained(AutoModel.from_pretrained(minilm()), str(folder)).eval()
    ids = AutoTokenizer.from_pretrained(minilm())(TEXT, return_tensors="pt")
    with torch.no_grad():
        tokens = model(**ids).last_hidden_state[0]
    mean = tokens.mean(0).numpy()
    found: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = mean / np.linalg.norm(mean)
    return found

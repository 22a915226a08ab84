"""A whole server for the folder of an adapter, beside its base: rows as sentence-transformers has them, and what is
refused in a line that names file and key."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from peft import LoraConfig
from sentence_transformers import SentenceTransformer

from tests.engine.folder_files import change
from tests.server_e2e.expected import minilm
from tests.server_e2e.running import PATIENCE, ROOT, Server, serving

pytestmark = pytest.mark.full

TEXTS = ["hello world", "embed this, please", "a"]


def saved(folder: Path) -> NDArray[np.float32]:
    """MiniLM with an adapter, as sentence-transformers saves it; its rows."""
    torch.manual_seed(0)
    library = SentenceTransformer(str(minilm()), device="cpu")
    library.add_adapter(LoraConfig(r=4, target_modules=["query", "dense"], init_lora_weights=False, use_dora=True))
    with torch.no_grad():
        for name, parameter in library.named_parameters():
            if "magnitude" in name:
                parameter.mul_(1 + 0.2 * torch.randn(parameter.shape))
            elif "lora_" in name:
                parameter.mul_(0.3)
    library.save(str(folder))
    change(folder / "adapter_config.json", base_model_name_or_path="plain")
    rows: NDArray[np.float32] = library.encode(TEXTS)
    return rows


def rows_of(server: Server, model: str) -> NDArray[np.float32]:
    reply = server.embed(TEXTS, model=model, encoding_format="bytes")
    assert reply.status == 200, reply.body
    return np.frombuffer(reply.body, "<f4").reshape(len(TEXTS), -1)


def run(command: str, *arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-m", "embedline", command, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XDG_RUNTIME_DIR": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_it_is_served_beside_its_base(tmp_path: Path) -> None:
    expected = saved(tmp_path / "legal")
    (tmp_path / "server.toml").write_text(
        f'[[model]]\nmodel_id = "{minilm()}"\nserved_model_name = "plain"\n'
        f'[[model]]\nmodel_id = "{tmp_path / "legal"}"\nserved_model_name = "legal"\n'
    )
    flags = ("--config", str(tmp_path / "server.toml"), "--compiled-cache", str(tmp_path / "cache"))
    with serving(*flags, folder=tmp_path) as server:
        legal, plain = rows_of(server, "legal"), rows_of(server, "plain")
        models = {model["info"]["name"]: model for model in server.request("GET", "/info").json()["models"]}
        assert server.stop() == 0
    np.testing.assert_allclose(legal, expected, atol=1e-5)
    assert np.abs(legal - plain).max() > 0.05
    assert models["legal"]["source"] == f"local folder, merged into {minilm()} (local folder)"
    assert models["legal"]["fingerprint"]["id"] != models["plain"]["fingerprint"]["id"]
    (line,) = (line for line in server.log.lines if "merging " in line and "tensors (use_dora)" in line)
    assert str(tmp_path / "legal") in line


def test_inspect_says_what_a_start_will_merge(tmp_path: Path) -> None:
    saved(tmp_path / "legal")
    change(tmp_path / "legal" / "adapter_config.json", base_model_name_or_path=str(minilm()))
    told = run("inspect", str(tmp_path / "legal"), folder=tmp_path)
    assert told.returncode == 0, told.stderr
    assert f"holds an adapter of {minilm()}: a start merges them into its cache first" in told.stdout


@pytest.mark.parametrize(
    ("key", "value"), [("base_model_name_or_path", "/nowhere"), ("r", 3), ("magic", True), ("use_bdlora", {})]
)
def test_what_is_refused_is_named_by_file_and_key(key: str, value: object, tmp_path: Path) -> None:
    saved(tmp_path / "legal")
    file = tmp_path / "legal" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": str(minilm()), key: value}))
    ended = run("serve", "--model-id", str(tmp_path / "legal"), "--port", "0", folder=tmp_path)
    assert ended.returncode == 2, ended.stderr
    (line,) = (line for line in ended.stderr.splitlines() if " INFO " not in line)
    assert repr(key) in line
    assert str(file) in line

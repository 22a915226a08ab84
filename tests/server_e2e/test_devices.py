"""Devices through a whole server: what is refused, what /info says, and the GPUs' engine on a CPU that was named."""

import shutil
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.selftest.fidelity import SENTENCES
from tests.engine.machine.test_cuda_driver import driver
from tests.server_e2e.expected import minilm
from tests.server_e2e.running import Server, serving
from tests.server_e2e.test_refusals_at_start import refusal

pytestmark = pytest.mark.holds("Engines on a GPU")


@pytest.mark.full
def test_a_gpu_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").write_text("")  # found before the machine's own, if it has one
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    missing = "there is no CUDA driver here (libcuda.so.1 can't be loaded)"
    assert refusal("--devices", "cuda:0", folder=tmp_path) == (
        f"embedline: --devices cuda:0: {missing}; docker run --gpus all gives a container those that there are; "
        "--devices cpu serves most models, by openvino or transformers"
    )
    assert missing in refusal("--devices", "cuda", folder=tmp_path)
    for flag in ("--engine", "fused"), ("--quantization", "fp8"):
        assert missing in (line := refusal(*flag, folder=tmp_path))
        assert " ".join(flag) in line


@pytest.mark.skipif(not version("torch").endswith("+cpu"), reason="the torch that is installed here has CUDA")
def test_a_gpu_that_torch_is_not_built_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.move(driver(tmp_path), tmp_path / "libcuda.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert "there is a GPU, but torch" in refusal("--devices", "cuda:0", folder=tmp_path)


@pytest.mark.full
def test_the_fused_engine_on_a_cpu_that_was_named(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    texts = list(SENTENCES[:12])
    reference = SentenceTransformer(str(minilm()), device="cpu", local_files_only=True)
    expected = np.stack([reference.encode(text) for text in texts])
    with serving("--engine", "fused", "--devices", "cpu", folder=tmp_path) as server:
        (model,) = server.request("GET", "/info").json()["models"]
        rows = rows_of(server, texts)
    assert (model["info"]["engine"], model["info"]["dtype"], model["devices"]) == ("fused", "float32", ["cpu"])
    assert np.abs(rows - expected).max() <= 1e-5


@pytest.mark.full
def test_fp8_on_a_cpu_that_was_named(tmp_path: Path) -> None:
    """Rows are those of plain weights but for what FP8 costs; /info has what the gate found, also of a later start."""
    texts = list(SENTENCES[:12])
    on_cpu = ("--engine", "fused", "--devices", "cpu", "--max-input-length", "32")
    own_cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with serving(*on_cpu, folder=tmp_path) as server:
        plain = rows_of(server, texts)
    notes = []
    for _ in range(2):
        with serving(*on_cpu, "--quantization", "fp8", folder=tmp_path, environment=own_cache) as server:
            (model,) = server.request("GET", "/info").json()["models"]
            rows = rows_of(server, texts)
        assert (model["info"]["engine"], model["info"]["dtype"], model["devices"]) == ("fused", "fp8", ["cpu"])
        cosines = (rows * plain).sum(axis=1)  # of rows of length 1
        assert 0.99 < cosines.min() < 0.99999
        notes.append(model["info"]["notes"])
    (gate,) = (note for note in notes[0] if note.startswith("fp8_row in "))
    assert "of 18 linear layers: cosine median 0.99" in gate
    assert "plain again: " in gate
    assert gate in notes[1]
    assert [sum("taken from" in note for note in each) for each in notes] == [0, 1]


def rows_of(server: Server, texts: list[str]) -> NDArray[np.float32]:
    reply = server.embed(texts, encoding_format="bytes")
    return np.frombuffer(reply.body, "<f4").reshape(len(texts), -1)

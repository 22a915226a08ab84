"""A whole server from a model that another one compiled: `embedline compile`, then `serve --compiled-model`."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.server_e2e.running import ROOT, serving


@pytest.mark.full
@pytest.mark.holds("A warm start imports neither torch nor transformers")
def test_a_server_takes_it_and_tells_of_one_that_is_cut_short(tmp_path: Path) -> None:
    entry = tmp_path / "compiled"
    command = [sys.executable, "-P", "-m", "embedline", "compile", "sentence-transformers/all-MiniLM-L6-v2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, "--out", str(entry)], env=environment, check=True)
    flags = ("--compiled-model", str(entry), "--compiled-cache", "off")
    with serving(*flags, folder=tmp_path) as server:
        rows = server.embed("a text").json()["data"][0]["embedding"]
        maps = Path(f"/proc/{server.processes()['engine 0']}/maps").read_text()
        server.log.wait_for(f"compiled model loaded from {entry}, and tested on this CPU: ")
    assert "libtorch" not in maps
    (entry / "model.bin").write_bytes((entry / "model.bin").read_bytes()[:1000])
    with serving(*flags, folder=tmp_path) as server:
        again = server.embed("a text").json()["data"][0]["embedding"]
        server.log.wait_for(f"the compiled model in {entry} is not used: .*model.bin; it is made anew")
    assert np.allclose(rows, again, atol=1e-6)

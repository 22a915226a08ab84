"""What can't be served is said in one line, with exit code 2, before any process is started."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.server_e2e.expected import minilm
from tests.server_e2e.running import PATIENCE, ROOT


def refusal(*flags: str, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """What a start says that is refused, without what informs."""
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "embedline", "serve", "--port", "0", "--prometheus-port", "0", *flags],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            **(environment or {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    return "\n".join(line for line in ended.stderr.splitlines() if " INFO " not in line)


@pytest.mark.holds("Shutdown")
def test_a_models_own_code_is_not_run(tmp_path: Path) -> None:
    """What else is refused: tests/server/settings/test_config_mistakes.py."""
    folder = tmp_path / "model"
    shutil.copytree(minilm(), folder)
    config = json.loads((folder / "config.json").read_text())
    own = {"model_type": "someones-own", "auto_map": {"AutoModel": "modeling_canary.Canary"}}
    (folder / "config.json").write_text(json.dumps({**config, **own}))
    (folder / "modeling_canary.py").write_text(f"open({str(folder / 'canary')!r}, 'w')\n")

    told = refusal("--model-id", str(folder), folder=tmp_path)
    assert "auto_map" in told
    assert "\n" not in told
    assert not (folder / "canary").exists()

"""The examples of docs/backfill.md do what they say, with the default model."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_e2e.running import CACHE_HOME, ROOT

PAGE = (ROOT / "docs" / "backfill.md").read_text()
EMBEDLINE = f'embedline() {{ "{sys.executable}" -P -m embedline "$@"; }}\nset -e\n'


def run(kind: str, code: str, folder: Path) -> str:
    command = [sys.executable, "-c", code] if kind == "python" else ["bash", "-c", EMBEDLINE + code]
    settings = {"EMBEDLINE_DEVICES": "cpu", "DTYPE": "float32"}
    environment = {**os.environ, **settings, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": os.environ[CACHE_HOME]}
    return subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.full
def test_the_examples_print_what_they_say(tmp_path: Path) -> None:
    printed, kinds = "", []
    for kind, code in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        kinds.append(kind)
        if kind == "text":
            assert printed == code
        else:
            printed = run(kind, code, tmp_path)
    assert kinds == ["python", "bash", "python", "text", "bash", "bash"]
    assert '"event": "estimate"' in printed

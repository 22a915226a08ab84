"""Loads the openvino engine in a new process, and says what that imported."""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.engine.cpu.engines import options

START = """
import json, sys
from engine.cpu import loading
from engine.messages import LoadOptions
given = LoadOptions(**json.loads(sys.argv[1]))
engine = loading.load(name="m", reason="", options=given)
heavy = ("torch", "transformers", "openvino_telemetry", "openvino.tools.ovc.convert")
print(json.dumps([[module for module in heavy if module in sys.modules], engine.info.notes[0]]))
"""
UNSET = ("XDG_CACHE_HOME",)  # set by whatever runs these tests


def start(folder: Path, **others: object) -> tuple[list[str], str]:
    """In a new process: which heavy modules the start imported, and what is noted."""
    given = json.dumps(dataclasses.asdict(options(folder, **others)))
    with tempfile.TemporaryDirectory() as home:
        answer = subprocess.run(
            [sys.executable, "-c", START, given],
            capture_output=True,
            text=True,
            check=False,
            env={key: value for key, value in os.environ.items() if key not in UNSET} | {"HOME": home},
        )
    assert answer.returncode == 0, answer.stderr
    assert not answer.stderr.strip(), answer.stderr
    modules, note = json.loads(answer.stdout)
    return modules, note

"""Converts a model in a child process: `python -P -m engine.cpu.child <pid of the parent>`, options on standard input.

A process of its own, because most models need torch and transformers, and an engine process that has imported them
keeps some 350 MB until it ends. Exits with 2 and one line on standard output if the model can't be converted.
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from engine.cpu import converted, converting
from engine.cpu.offer import compile_options_of
from engine.messages import LoadOptions
from engine.model.model_folder import read_with
from engine.types import ModelError
from wire.dataclass_json import from_json, to_json
from wire.process import settle

_APPLICATION = Path(__file__).parents[2]
_REFUSED = 2  # the exit code of a model that can't be converted


class ConversionProcess:
    """A child that is at work. It may have to import torch, which takes longest, so start it before all else. Leaving
    the context ends it."""

    def __init__(self, options: LoadOptions, target: Path) -> None:
        """Start it. `target`: an empty folder, for the model and the file of engine.cpu.converted."""
        asked = {"options": to_json(options), "target": str(target)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "engine.cpu.child", str(os.getpid())],
            env={**os.environ, "PYTHONPATH": str(_APPLICATION)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:  # of a child that has ended: see wait
            stdin.write(json.dumps(asked).encode())

    def __enter__(self) -> "ConversionProcess":
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # which waits for it
            self._process.kill()

    def wait(self) -> None:
        """Until it has converted the model. Raises ModelError with the child's line."""
        assert self._process.stdout is not None
        said = self._process.stdout.read()
        code = self._process.wait()
        if code == _REFUSED:
            raise ModelError(said.decode().strip())
        if code:
            raise ModelError(f"the process that converts the model ended with {code}")


def convert(options: LoadOptions, target: Path) -> None:
    """Do the child's work. Raises ModelError."""
    folder = read_with(options)
    compile_options = compile_options_of(folder, options)
    found = converting.convert(folder, compile_options, target=target, num_threads=options.num_threads)
    converted.write(target, found)


def main() -> NoReturn:
    """Run the child."""
    settle(int(sys.argv[1]))
    try:
        asked = json.load(sys.stdin)
        convert(from_json(LoadOptions, asked["options"]), Path(asked["target"]))
    except ModelError as error:
        print(error)
        sys.exit(_REFUSED)
    sys.stdout.flush()
    os._exit(0)  # what torch and its threads would do at the end takes time


if __name__ == "__main__":
    main()

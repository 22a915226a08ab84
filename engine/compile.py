"""Compiles a model into the cache: `python -P -m engine.compile <pid of the parent>`, options on standard input.

A process of its own, because it needs torch and transformers, and an engine process that has imported them keeps some
350 MB until it ends. Exits with 2 and one line on standard output if the model can't be compiled.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from engine.messages import LoadOptions
from engine.types import ModelError
from wire.dataclass_json import from_json, to_json
from wire.process import settle

_APPLICATION = Path(__file__).parents[1]
_REFUSED = 2  # the exit code of a model that can't be compiled


def compile_in_child(engine: str, options: LoadOptions) -> None:
    """Have a child compile the model for an engine of engine.registry. Raises ModelError with the child's line."""
    asked = {"engine": engine, "options": to_json(dataclasses.replace(options, compiled=None, compiles_in_child=False))}
    child = subprocess.run(
        [sys.executable, "-P", "-m", "engine.compile", str(os.getpid())],
        input=json.dumps(asked).encode(),
        env={**os.environ, "PYTHONPATH": str(_APPLICATION)},
        stdout=subprocess.PIPE,
        check=False,
    )
    if child.returncode == _REFUSED:
        raise ModelError(child.stdout.decode().strip())
    if child.returncode:
        raise ModelError(f"the process that compiles the model ended with {child.returncode}")


def main() -> NoReturn:
    """Run the child."""
    settle(int(sys.argv[1]))
    asked = json.load(sys.stdin)
    from engine import registry

    try:
        registry.load(asked["engine"], name="", reason="", options=from_json(LoadOptions, asked["options"])).close()
    except ModelError as error:
        print(str(error))
        sys.exit(_REFUSED)
    sys.stdout.flush()
    os._exit(0)  # what torch and its threads would do at the end takes time


if __name__ == "__main__":
    main()

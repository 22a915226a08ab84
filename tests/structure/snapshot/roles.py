"""Which modules each process of a server has imported, and how long that takes."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.server_e2e.running import ROOT, Server
from tests.structure.sources import PACKAGES

_ASKS = Path(__file__).parent / "modules"


def environment(folder: Path) -> dict[str, str]:
    """What a server gets whose processes tell their modules. The folder is empty."""
    return {"PYTHONPATH": os.pathsep.join((str(_ASKS), str(ROOT))), "MODULES_TO": str(folder)}


@dataclass(frozen=True, slots=True)
class Role:
    """One process: what `python -m` was given, and the names of all that it has imported."""

    module: str
    imported: list[str]


def roles(server: Server, folder: Path) -> dict[str, Role]:
    """The processes of a server by their titles."""
    found = {}
    for title, pid in {"supervisor": server.process.pid, **server.processes()}.items():
        (folder / f"ask-{pid}").open("wb").close()
        with (folder / f"told-{pid}").open("rb") as pipe:
            pipe.read()
        module, *imported = (folder / f"modules-{pid}").read_text().splitlines()
        found[title] = Role(module, imported)
    return found


def compared(names: list[str]) -> dict[str, Any]:
    """What must stay: how many of our modules there are, for they move, and the names of the others."""
    ours = {name for name in names if name.partition(".")[0] in PACKAGES}
    return {"ours": len(ours), "others": sorted(set(names) - ours)}


def import_time(module: str) -> dict[str, int]:
    """Microseconds of an import in a process of its own, and how many modules it loads."""
    command = [sys.executable, "-P", "-X", "importtime", "-c", f"import {module}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    log = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    selves = [int(match[1]) for match in re.finditer(r"^import time: +(\d+) \|", log, re.MULTILINE)]
    return {"modules": len(selves), "microseconds": sum(selves)}

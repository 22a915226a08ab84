"""Starts processes that look for a model on a small hub on this machine: the library reads its address when it is
imported."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine.store.local_hub import MODEL, LocalHub
from tests.server_e2e.running import PATIENCE
from tests.structure.sources import ROOT

NOBODY = "http://127.0.0.1:1"  # a port at which nothing listens
# Prints what was found, or the error, and which of the library was imported for it.
START = """
import json, resource, sys
from pathlib import Path
from engine.store.model_source import resolve
from engine.types import ModelError
model_id, revision, cache, token, patience, largest_file, needs_modules, more = json.loads(sys.argv[1])
if patience:
    import engine.store.hub
    engine.store.hub._TIMEOUT = patience
if largest_file:
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
try:
    options = {"cache_dir": Path(cache) if cache else None, "token": token, "needs_modules": needs_modules}
    found = resolve(model_id, revision, more=more, **options)
    answer = {"path": str(found.path), "source": found.source, "revision": found.revision, "error": ""}
except ModelError as error:
    answer = {"path": "", "source": "", "revision": "", "error": str(error)}
print(json.dumps(answer | {"imported": [name for name in sys.modules if name.startswith("huggingface_hub")]}))
"""


@dataclass(frozen=True, slots=True)
class Found:
    """What a start found."""

    path: Path
    source: str
    revision: str
    error: str
    imported: list[str]
    stderr: str


@dataclass(frozen=True, slots=True)
class Starter:
    """Starts processes that look for the model, with this cache."""

    hub: LocalHub
    cache: Path

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        here = {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": self.hub.url, "NO_PROXY": "*", "HOME": str(self.cache)}
        return {**kept, **here}

    def __call__(self, model_id: str = MODEL, revision: str | None = None, **options: Any) -> Found:
        cache = options.pop("cache", self.cache)
        given = [options.pop(name, None) for name in ("token", "patience", "largest_file")]
        given += [options.pop("needs_modules", True), options.pop("more", ())]
        ended = subprocess.run(
            [sys.executable, "-P", "-c", START, json.dumps([model_id, revision, cache and str(cache), *given])],
            env={**self.environment(), **options},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        answer = json.loads(ended.stdout)
        assert "\n" not in answer["error"]
        return Found(**{**answer, "path": Path(answer["path"])}, stderr=ended.stderr)

"""Which engines there are, and which one serves a model here. Imports an engine only when it is loaded."""

import importlib
import importlib.util
from typing import Any

from engine.types import Engine, ModelError

# name -> the module whose `load(name=, reason=, options=)` makes it
_ENGINES = {
    "fake": "engine.fake",
    "transformers": "engine.transformers.engine",
}
# what `auto` tries, in this order, and the package each needs
_AUTO_ON_CPU = (("transformers", "transformers"),)


def choose(asked: str) -> tuple[str, str]:
    """The engine's name and, for the log and /info, why. Raises ModelError where none can serve."""
    if asked != "auto":
        if asked not in _ENGINES:
            raise ModelError(f"--engine {asked} is not one of auto, {', '.join(_ENGINES)}")
        return asked, f"--engine {asked}"
    for name, package in _AUTO_ON_CPU:
        if importlib.util.find_spec(package) is not None:
            return (
                name,
                f"--engine auto: the first of {', '.join(n for n, _ in _AUTO_ON_CPU)} installed here for the CPU",
            )
    raise ModelError("no engine is installed here; pip install 'embedline[server]'")


def load(engine: str, *, name: str, reason: str, options: dict[str, Any]) -> Engine:
    """Load a model. Raises ModelError with one line for the operator where it can't be served."""
    loaded: Engine = importlib.import_module(_ENGINES[engine]).load(name=name, reason=reason, options=options)
    return loaded

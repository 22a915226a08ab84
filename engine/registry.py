"""Which engines there are, and which one serves a model here. Imports an engine only when it is loaded."""

import importlib
import importlib.util
import logging
from typing import Any

from engine.types import Engine, ModelError

logger = logging.getLogger("embedline.engine")

# name -> the module whose `load(name=, reason=, options=)` makes it
_ENGINES = {
    "fake": "engine.fake",
    "openvino": "engine.compiled.openvino",
    "onnxruntime": "engine.compiled.onnxruntime",
    "transformers": "engine.transformers.engine",
}
AUTO = "auto"
_AUTO_ON_CPU = ("openvino", "transformers")  # the first that can serve the model
_PACKAGES = {"openvino": "openvino", "transformers": "transformers"}  # without which those can't serve
_QUANTIZES_ON_CPU = {"int8": "onnxruntime"}  # quantization -> the only engine that does it
_AS_THE_MODEL_IS = ("none", "auto")  # auto: CPUs gain speed from it at the price of fidelity, so it has to be asked for


def choose(asked: str, *, quantization: str = "none") -> tuple[str, str]:
    """The engine's name and, for the log and /info, why. Raises ModelError where none has that name or quantizes so.

    The name may be "auto": which engine can serve the model shows when it is loaded, see `load`.
    """
    if asked != AUTO and asked not in _ENGINES:
        raise ModelError(f"--engine {asked} is not one of auto, {', '.join(_ENGINES)}")
    if asked != "fake" and quantization not in _AS_THE_MODEL_IS:
        return _that_quantizes(asked, quantization)
    if asked != AUTO:
        return asked, f"--engine {asked}"
    return AUTO, f"--engine auto: the first of {', '.join(_AUTO_ON_CPU)} that can serve this model on the CPU"


def tried_by_auto() -> dict[str, bool]:
    """The engines that "auto" tries, in this order, and whether each one's package is installed. Imports none."""
    return {name: importlib.util.find_spec(_PACKAGES[name]) is not None for name in _AUTO_ON_CPU}


def _that_quantizes(asked: str, quantization: str) -> tuple[str, str]:
    engine = _QUANTIZES_ON_CPU.get(quantization)
    if engine is None:
        raise ModelError(f"--quantization {quantization} is not for a CPU; {', '.join(_QUANTIZES_ON_CPU)} is")
    if asked not in (AUTO, engine):
        raise ModelError(f"--quantization {quantization} is not for --engine {asked}; {engine} does it")
    return engine, f"--engine {asked} with --quantization {quantization}"


def load(engine: str, *, name: str, reason: str, options: dict[str, Any]) -> Engine:
    """Load a model. Raises ModelError with one line for the operator where it can't be served.

    A named engine serves it or fails. "auto" tries one after the other, and ModelInfo.reason says why the first ones
    could not.
    """
    if engine != AUTO:
        return _load(engine, name=name, reason=reason, options=options)
    for candidate in _AUTO_ON_CPU[:-1]:
        try:
            return _load(candidate, name=name, reason=reason, options=options)
        except ModelError as error:
            logger.warning("the %s engine can't serve %s: %s", candidate, name, error)
            reason = f"{reason}; not {candidate}: {error}"
    return _load(_AUTO_ON_CPU[-1], name=name, reason=reason, options=options)


def _load(engine: str, *, name: str, reason: str, options: dict[str, Any]) -> Engine:
    try:
        module = importlib.import_module(_ENGINES[engine])
    except ModuleNotFoundError as error:
        raise ModelError(
            f"the {engine} engine needs {error.name}, which is not installed: pip install 'embedline[server]'"
        ) from error
    loaded: Engine = module.load(name=name, reason=reason, options=options)
    return loaded

"""Which engines there are, and which one serves a model here. Imports an engine only when it is loaded."""

import importlib
import importlib.util
import logging

from engine.failures import engine_error, one_line
from engine.machine.devices import kind_of
from engine.machine.memory import release
from engine.messages import LoadOptions
from engine.types import DeviceTrouble, Engine, EngineErrorKind, ModelError, ProcessSpent

logger = logging.getLogger("embedline.engine")

# name -> the module whose `load(name=, reason=, options=)` makes it
_ENGINES = {
    "fake": "engine.fake",
    "openvino": "engine.cpu.executors.openvino",
    "onnxruntime": "engine.cpu.executors.onnxruntime",
    "tensorrt-llm": "engine.tensorrt_llm.engine",
    "fused": "engine.fused.start",
    "transformers": "engine.transformers.engine",
    "static": "engine.static.engine",
}
AUTO = "auto"
# The first that can serve.
_PREFERRED = {"cpu": ("openvino", "transformers"), "cuda": ("tensorrt-llm", "fused", "transformers")}
# Without which those can't.
_PACKAGES = {
    "openvino": "openvino",
    "tensorrt-llm": "tensorrt_llm",
    "fused": "triton",
    "transformers": "transformers",
}
_NOT_OURS = frozenset(("tensorrt-llm",))  # whose package comes with no extra of ours: where it is not, nothing is amiss
_QUANTIZES = {("cpu", "int8"): ("onnxruntime",), ("cuda", "fp8"): ("fused", "tensorrt-llm")}  # auto is the first
_EXTRAS = {"fused": "cuda"}  # of our package, that bring what an engine needs; "server" brings the others' needs
_EXTRA = "pip install 'embedline[{}]'"
_INSTEAD = {  # what helps where a device fails an engine
    EngineErrorKind.OUT_OF_MEMORY: "free memory there, or lower --max-batch-tokens or --max-input-length",
    EngineErrorKind.FATAL: "--devices may name another, or cpu",
}
_WHERE = {"cpu": "the CPU", "cuda": "a GPU"}
# auto is the engine's own choice; CPUs gain speed at the price of fidelity, so there it has to be asked for
_ANY_ENGINE_DOES = ("none", "auto")


def choose(asked: str, *, quantization: str = "none", device: str = "cpu") -> tuple[str, str]:
    """The engine's name and, for the log and /info, why. Raises ModelError where none has that name or quantizes so.

    The name may be "auto": which engine can serve the model shows when it is loaded, see `load`.
    """
    if asked != AUTO and asked not in _ENGINES:
        raise ModelError(f"--engine {asked} is not one of auto, {', '.join(_ENGINES)}")
    if asked != "fake" and quantization not in _ANY_ENGINE_DOES:
        return _that_quantizes(asked, quantization, kind_of(device))
    if asked != AUTO:
        return asked, f"--engine {asked}"
    kind = kind_of(device)
    return (
        AUTO,
        f"--engine auto: the first of {', '.join(_PREFERRED[kind])} that can serve this model on {_WHERE[kind]}",
    )


def tried_by_auto(device: str) -> dict[str, bool]:
    """The engines that "auto" tries, in this order, and whether each one's package is installed. Imports none."""
    tried = _PREFERRED[kind_of(device)]
    return {name: importlib.util.find_spec(_PACKAGES[name]) is not None for name in tried}


def _that_quantizes(asked: str, quantization: str, kind: str) -> tuple[str, str]:
    if (asked, quantization, kind) == ("fused", "fp8", "cpu"):  # slow, to see what it costs in fidelity
        return asked, f"--engine {asked} with --quantization {quantization}"
    engines = _QUANTIZES.get((kind, quantization))
    if engines is None:
        others = ", ".join(
            f"{known} is, by {by[0]}" for (its_kind, known), by in _QUANTIZES.items() if its_kind == kind
        )
        checks = "; --engine fused does it there, slowly, for checks" if (kind, quantization) == ("cpu", "fp8") else ""
        raise ModelError(f"--quantization {quantization} is not for {_WHERE[kind]}; {others}{checks}")
    if asked not in (AUTO, *engines):
        raise ModelError(f"--quantization {quantization} is not for --engine {asked}; {engines[0]} does it")
    return engines[0] if asked == AUTO else asked, f"--engine {asked} with --quantization {quantization}"


def load(engine: str, *, name: str, reason: str, options: LoadOptions) -> Engine:
    """Load a model. Raises ModelError with one line for the operator where it can't be served.

    A named engine serves it or fails. "auto" tries one after the other, and ModelInfo.reason says why the first ones
    could not. Where it is the device that failed one, or one has left the process unfit, the others are not tried.
    """
    if engine != AUTO:
        return _load(engine, name=name, reason=reason, options=options)
    kind = kind_of(options.device)
    failures: list[str] = []
    for candidate in _PREFERRED[kind]:
        if candidate in _NOT_OURS and importlib.util.find_spec(_PACKAGES[candidate]) is None:
            continue
        try:
            return _load(candidate, name=name, reason=reason, options=options)
        except ModelError as error:
            why = str(error)  # not the error itself: its traceback holds what was loaded
            is_the_last = isinstance(error, DeviceTrouble | ProcessSpent)
        logger.warning("the %s engine can't serve %s: %s", candidate, name, why)
        failures.append(f"{candidate}: {why}")
        reason = f"{reason}; not {failures[-1]}"
        if is_the_last:
            break
        release()
    raise ModelError(f"--engine auto finds none that serves it on {_WHERE[kind]}: {'; '.join(failures)}")


def _load(engine: str, *, name: str, reason: str, options: LoadOptions) -> Engine:
    try:
        module = importlib.import_module(_ENGINES[engine])
        loaded: Engine = module.load(name=name, reason=reason, options=options)  # some import what they need here
    except ModuleNotFoundError as error:
        what = "comes with its package" if engine in _NOT_OURS else _EXTRA.format(_EXTRAS.get(engine, "server"))
        raise ModelError(f"the {engine} engine needs {error.name}, which is not installed: {what}") from error
    except ModelError:
        raise
    except Exception as error:
        instead = _INSTEAD.get(engine_error(error).kind)
        if instead is None:
            raise
        raise DeviceTrouble(f"{options.device} fails the {engine} engine ({one_line(error)}); {instead}") from error
    return loaded

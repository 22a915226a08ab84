"""The table of engines, and the choice of the one that serves a model. Imports an engine only to load it."""

import contextlib
import dataclasses
import gc
import importlib
import importlib.util
import logging
import sys
from dataclasses import dataclass

from engine.machine.failures import engine_error, one_line
from engine.messages import LoadOptions
from engine.types import DeviceTrouble, Engine, EngineErrorKind, ModelError, OnStage, ProcessSpent, RowsDiffer, untold

logger = logging.getLogger("embedline.engine")

AUTO = "auto"
CPU, CUDA = "cpu", "cuda"  # kinds of devices
FAKE, FUSED, OPENVINO = "fake", "fused", "openvino"
STATIC, TENSORRT_LLM, TRANSFORMERS = "static", "tensorrt-llm", "transformers"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """The facts about an engine that the rest of the program needs before it is loaded."""

    name: str  # in `--engine`
    module: str  # has `load(name=, reason=, options=, on_stage=)`
    offer: str = ""  # has OFFER, see engine.offer; "" = the engine has no options and no reasons of its own
    packages: tuple[str, ...] = ()  # that it needs; for auto it is installed if the first one is
    converters: tuple[str, ...] = ()  # of [server], which it needs to convert most models, and not to serve them
    extra: str = "server"  # of our package, which installs those; "" = users install them
    kinds: tuple[str, ...] = (CPU, CUDA)  # of devices that it is for
    checks_on_cpu: bool = False  # for GPUs, but also runs on a CPU, slowly
    auto_on: tuple[str, ...] = ()  # kinds of devices on which auto tries it, in the order of this table
    quantizes: str = ""  # its --quantization on the first of its kinds of devices
    reads_fp8: bool = False  # whether it reads weights stored in FP8 with scales
    takes_loras: bool = False  # whether it computes adapters that are kept apart from the model (--lora)
    not_of_loras: tuple[str, ...] = ()  # keys of such an adapter's configuration that it does not compute
    needs_bfloat16: bool = False  # whether a GPU must have bfloat16; the others also compute in the types of older GPUs


ENGINES = {
    row.name: row
    for row in (
        EngineRow(name=FAKE, module="engine.fake", offer="engine.fake", takes_loras=True),
        EngineRow(
            name=OPENVINO,
            module="engine.cpu.loading",
            offer="engine.cpu.offer",
            packages=("openvino",),
            converters=("torch", "transformers"),
            extra="cpu",
            kinds=(CPU,),
            auto_on=(CPU,),
            quantizes="int8",
            takes_loras=True,
            not_of_loras=("bias",),
        ),
        EngineRow(
            name=FUSED,
            module="engine.fused.start",
            offer="engine.fused.offer",
            packages=("triton", "torch", "transformers"),
            extra="cuda",
            kinds=(CUDA,),
            checks_on_cpu=True,
            auto_on=(CUDA,),
            quantizes="fp8",
            reads_fp8=True,
            needs_bfloat16=True,
        ),
        EngineRow(
            name=TENSORRT_LLM,
            module="engine.tensorrt_llm.engine",
            offer="engine.tensorrt_llm.offer",
            packages=("tensorrt_llm",),
            extra="",
            kinds=(CUDA,),
            quantizes="fp8",
            reads_fp8=True,
            needs_bfloat16=True,
        ),
        EngineRow(
            name=TRANSFORMERS,
            module="engine.transformers.engine",
            packages=("transformers", "torch"),
            auto_on=(CPU, CUDA),
            takes_loras=True,
        ),
        EngineRow(name=STATIC, module="engine.static", packages=("numpy",)),
    )
}
_INSTEAD = {  # what helps if the device fails
    EngineErrorKind.OUT_OF_MEMORY: "free memory there, or lower --max-batch-tokens or --max-input-length",
    EngineErrorKind.FATAL: "--devices may name another, or cpu",
}
_WHERE = {CPU: "the CPU", CUDA: "a GPU"}
# auto = the engine chooses. On CPUs it chooses none, because quantization loses fidelity there.
_ANY_ENGINE_DOES = ("none", "auto")


def choose(asked: str, *, quantization: str = "none", kind: str = CPU) -> tuple[str, str]:
    """The engine's name and the reason, for the log and /info. Raises ModelError if no engine has the name or the
    quantization.

    The name may be "auto": `load` finds out which engine can serve the model.
    """
    if asked != AUTO and asked not in ENGINES:
        raise ModelError(f"--engine {asked} is not one of auto, {', '.join(ENGINES)}")
    if asked != FAKE and quantization not in _ANY_ENGINE_DOES:
        return _that_quantizes(asked, quantization, kind)
    if asked != AUTO:
        return asked, f"--engine {asked}"
    tried = ", ".join(row.name for row in _tried_by_auto(kind))
    return AUTO, f"--engine auto: the first of {tried} that can serve this model on {_WHERE[kind]}"


def why_no_loras(engine: str) -> str | None:
    """Why the engine takes no --lora; None where it does, and for auto, which passes over those that do not."""
    if engine == AUTO or ENGINES[engine].takes_loras:
        return None
    return (
        f"--lora is not for the {engine} engine, which can't keep an adapter apart: serve the adapter's folder as a "
        "model of its own, with its matrices merged into the weights"
    )


def tried_by_auto(kind: str) -> dict[str, bool]:
    """The engines that "auto" tries, in order, and whether their packages are installed. Imports none."""
    return {row.name: importlib.util.find_spec(row.packages[0]) is not None for row in _tried_by_auto(kind)}


def _tried_by_auto(kind: str) -> list[EngineRow]:
    return [row for row in ENGINES.values() if kind in row.auto_on]


def _that_quantizes(asked: str, quantization: str, kind: str) -> tuple[str, str]:
    rows = [row for row in ENGINES.values() if row.quantizes and row.kinds[0] == kind]
    if asked != AUTO and ENGINES[asked].checks_on_cpu and (quantization, kind) == (ENGINES[asked].quantizes, CPU):
        return asked, f"--engine {asked} with --quantization {quantization}"
    engines = [row.name for row in rows if row.quantizes == quantization]
    if not engines:
        others = ", ".join(f"{row.quantizes} is, by {row.name}" for row in rows[:1])
        checks = "; --engine fused does it there, slowly, for checks" if (kind, quantization) == (CPU, "fp8") else ""
        raise ModelError(f"--quantization {quantization} is not for {_WHERE[kind]}; {others}{checks}")
    if asked not in (AUTO, *engines):
        raise ModelError(f"--quantization {quantization} is not for --engine {asked}; {engines[0]} does it")
    return engines[0] if asked == AUTO else asked, f"--engine {asked} with --quantization {quantization}"


def import_early(engine: str) -> None:
    """Import an engine that is likely to be loaded. Where that fails, `load` fails and says why."""
    with contextlib.suppress(Exception):
        importlib.import_module(ENGINES[engine].module).import_library()


def load(engine: str, *, name: str, reason: str, options: LoadOptions, on_stage: OnStage = untold) -> Engine:
    """Load a model; the stages have the engine's name before their own. Raises ModelError with one line for the
    operator if it can't be served.

    "auto" tries one engine after the other, and ModelInfo.reason says why the first ones failed. Where one's rows were
    not the model's, the next must pass a test at least as long. It stops if the device
    is at fault or an engine has spoiled the process.
    """
    if engine != AUTO:
        return _load(engine, name=name, reason=reason, options=options, on_stage=on_stage)
    kind = options.kind
    failures: list[str] = []
    for candidate in (row.name for row in _tried_by_auto(kind)):
        try:
            return _load(candidate, name=name, reason=reason, options=options, on_stage=on_stage)
        except ModelError as error:
            why = str(error)  # not the error itself: its traceback holds what was loaded
            is_the_last = isinstance(error, DeviceTrouble | ProcessSpent)
            if isinstance(error, RowsDiffer):
                options = dataclasses.replace(options, least_tried=max(options.least_tried, error.num_tokens))
        logger.warning("the %s engine can't serve %s: %s", candidate, name, why)
        failures.append(f"{candidate}: {why}")
        reason = f"{reason}; not {failures[-1]}"
        if is_the_last:
            break
        release_memory()
    raise ModelError(f"--engine auto finds no engine that can serve it on {_WHERE[kind]}: {'; '.join(failures)}")


def _load(engine: str, *, name: str, reason: str, options: LoadOptions, on_stage: OnStage) -> Engine:
    def enter(stage: str) -> None:
        on_stage(f"{engine}: {stage}")

    row = ENGINES[engine]
    if options.loras and (refused := why_no_loras(engine)):
        raise ModelError(refused)
    try:
        enter("import")
        module = importlib.import_module(row.module)
        # may import more packages
        loaded: Engine = module.load(name=name, reason=reason, options=options, on_stage=enter)
    except ModuleNotFoundError as error:
        what = f"pip install 'embedline[{row.extra}]'" if row.extra else "comes with its package"
        raise ModelError(f"the {engine} engine needs {error.name}, which is not installed: {what}") from error
    except ModelError:
        raise
    except Exception as error:
        instead = _INSTEAD.get(engine_error(error).kind)
        if instead is None:
            raise
        raise DeviceTrouble(f"{options.device} fails the {engine} engine ({one_line(error)}); {instead}") from error
    return loaded


def release_memory() -> None:
    """Free the memory of a dropped model, on GPUs too. Imports no torch.

    Nothing may refer to the model any more, and no traceback of a failed load.
    """
    gc.collect()  # parts of a model refer to each other
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()

"""Which engines can serve a model here, and why the others can't, as far as can be known without loading anything."""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine import registry
from engine.cpu import bert
from engine.fused.choices import check_outputs
from engine.machine import devices
from engine.machine.cuda_driver import Cuda
from engine.machine.devices import Devices, Work, kind_of
from engine.model import quantization
from engine.model.coverage import ARCHITECTURES, Use
from engine.model.model_folder import ModelFolder
from engine.model.tasks import Task
from engine.registry import CPU, CUDA, FUSED, STATIC, TENSORRT_LLM
from engine.tensorrt_llm.contract import contract
from engine.tensorrt_llm.planning import package
from engine.tensorrt_llm.planning.plan import plan
from engine.tensorrt_llm.planning.stock import KNOWN_CLASSES
from engine.types import ModelError
from server.commands.doctor.probe import Environment
from server.settings.model import ModelSettings
from server.supervisor.planning.model_plan import tensorrt_llm_flags

_USES = {
    Task.EMBED: Use.EMBED,
    Task.RERANK: Use.RERANK,
    Task.CLASSIFY: Use.CLASSIFY,
    Task.TOKEN_CLASSIFY: Use.TOKEN_CLASSIFY,
    Task.SPARSE: Use.SPARSE,
    Task.LATE_INTERACTION: Use.LATE_INTERACTION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictInputs:
    """What a verdict depends on."""

    model: ModelSettings
    folder: ModelFolder | None  # None = it is not on this machine, or can't be read
    cuda: Cuda  # the GPUs that engines can use
    environment: Environment  # the Python that they run under


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether one engine can serve the model here."""

    engine: str
    devices: tuple[str, ...]  # where it would run; () = nowhere
    why_not: tuple[str, ...]  # every reason, a line each; () = nothing speaks against it
    notes: tuple[str, ...] = ()

    @property
    def can_serve(self) -> bool:
        """As far as it shows before the model is loaded."""
        return not self.why_not


def verdicts(inputs: VerdictInputs) -> list[Verdict]:
    """A verdict for every engine but the fake one."""
    return [_verdict(engine, inputs) for engine, row in registry.ENGINES.items() if row.packages]


def chosen_by_auto(found: list[Verdict], kind: str) -> Verdict | None:
    """What `--engine auto` chooses on devices of this kind; None where none can serve the model."""
    by_name = {verdict.engine: verdict for verdict in found}
    if by_name[STATIC].can_serve:  # true only of tables of static embeddings, which no other engine serves
        return by_name[STATIC]
    tried = [by_name[name] for name in registry.tried_by_auto(kind)]
    return next((verdict for verdict in tried if verdict.can_serve), None)


def _verdict(engine: str, inputs: VerdictInputs) -> Verdict:
    chosen, why_not = _devices(engine, inputs)
    notes: list[str] = []
    seen = dataclasses.replace(inputs, cuda=Cuda(chosen.gpus)) if chosen else inputs
    for check in (_installed, _of_model):
        why_not += _said(check, engine, seen, notes)
    names = chosen.names if chosen else ()
    return Verdict(engine=engine, devices=names, why_not=tuple(why_not), notes=tuple(notes))


def _devices(engine: str, inputs: VerdictInputs) -> tuple[Devices | None, list[str]]:
    """Where it would run, or why it can't."""
    model = inputs.model
    work = Work(engine, model.dtype, model.quantization)
    if work.is_for_a_gpu and model.devices == registry.AUTO and not inputs.cuda.gpus:
        return None, [f"it needs a GPU: {inputs.cuda.why_none}"]
    try:
        asked = CPU if engine == STATIC and model.devices == registry.AUTO else model.devices
        chosen = devices.choose(asked, work, inputs.cuda)
        registry.choose(engine, quantization=model.quantization, kind=chosen.kind)
    except ModelError as error:
        return None, [str(error)]
    return chosen, []


def _said(
    check: Callable[[str, VerdictInputs, list[str]], Iterator[str]],
    engine: str,
    inputs: VerdictInputs,
    notes: list[str],
) -> list[str]:
    """What a check finds; it may end with an error."""
    found: list[str] = []
    try:
        for reason in check(engine, inputs, notes):
            found.append(reason)  # one by one: an error does not lose those before it
    except ModelError as error:
        found.append(str(error))
    return found


def _installed(engine: str, inputs: VerdictInputs, notes: list[str]) -> Iterator[str]:
    if engine == TENSORRT_LLM:
        yield from _library(inputs, notes)
        return
    row = registry.ENGINES[engine]
    if lacks := inputs.environment.lacks(row.packages):
        yield f"{' and '.join(lacks)} not installed: pip install 'embedline[{row.extra}]'"
    elif lacks := inputs.environment.lacks(row.converters):
        install = f"{' and '.join(lacks)} not installed: pip install 'embedline[{row.extra}]'"
        if inputs.model.compiled_model is None and inputs.folder is not None and not bert.described(inputs.folder):
            yield f"{install}, or give it --compiled-model, since this model is not converted without"
        else:
            notes.append(f"it serves BERT and RoBERTa embedding models and compiled ones, no others ({install})")


def _library(inputs: VerdictInputs, notes: list[str]) -> Iterator[str]:
    """tensorrt_llm, which brings everything else: there, not too old, and with the signatures that are relied on."""
    environment = inputs.environment
    version = environment.versions.get(contract.PACKAGE)
    if version is None and environment.python == sys.executable:
        package.find()  # says in its own words that there is none
    if version is None:
        yield f"the package {contract.PACKAGE} is not installed for {environment.python}"
        return
    if package.is_too_old(version):
        yield f"{contract.PACKAGE} {version} is too old: it has no LLM.encode"
        return
    report = contract.check(Path(environment.folders[contract.PACKAGE]))
    notes.append(f"its signatures, read and not run: {report.summary}")
    if not report.is_kept:
        yield f"{contract.PACKAGE} {version} lacks what the engine needs; see `embedline doctor --tensorrt-llm-source`"


def _of_model(engine: str, inputs: VerdictInputs, notes: list[str]) -> Iterator[str]:
    """Whether it knows such a model, and can read its weights."""
    folder = inputs.folder
    if folder is None:
        return
    if folder.is_static != (engine == STATIC):
        yield (
            "it serves tables of static embeddings alone"
            if engine == STATIC
            else ("the model is a table of static embeddings, which the static engine looks up")
        )
        return
    if engine == TENSORRT_LLM:
        plan(folder, inputs.cuda.gpus, tensorrt_llm_flags(inputs.model))
    elif KNOWN_CLASSES.intersection(folder.architectures[:1]):
        yield f"the model brings code for {folder.architectures[0]}, which is never run"
    elif engine != STATIC:
        yield from _of_coverage(engine, folder, notes)
        quantization.check(folder.weights_folder, reads_fp8=registry.ENGINES[engine].reads_fp8)


def _of_coverage(engine: str, folder: ModelFolder, notes: list[str]) -> Iterator[str]:
    """By the table in docs/models.md."""
    rows = [row for row in ARCHITECTURES if row.model_type == folder.architecture]
    use = Use.GENERATIVE_RERANK if folder.template else _USES[folder.task]
    if engine == FUSED:
        check_outputs(folder)
        if not any(row.is_fused for row in rows):
            yield f"it does not know the architecture {folder.architecture!r}"
    elif not any(use in row.uses for row in rows):
        notes.append(f"{folder.architecture!r} for {use} is not in the table of docs/models.md: it may serve it")
    elif registry.ENGINES[engine].kinds == (CPU,) and all("openvino" not in row.engines(use) for row in rows):
        yield f"it does not compute {folder.architecture!r} for {use}"


def kind_of_auto(inputs: VerdictInputs) -> str:
    """Where `--devices` as it is given has `--engine auto` compute: "cpu" or "cuda". Raises ModelError."""
    model = inputs.model
    chosen = devices.choose(model.devices, Work(registry.AUTO, model.dtype, model.quantization), inputs.cuda)
    kind = kind_of(chosen.names[0])
    assert kind in (CPU, CUDA)
    return kind

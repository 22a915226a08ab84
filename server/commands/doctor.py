"""`embedline doctor`: what this machine has, which engines can serve a model here, and why others can't.

Starts nothing, loads no weights and fetches nothing, so a verdict is what can be known without that.
"""

import dataclasses
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine import registry
from engine.cpu import bert
from engine.fused.choices import check_outputs
from engine.machine import cores, cuda_driver, devices, host
from engine.machine.cuda_driver import Cuda, Gpu
from engine.machine.devices import Devices, Work, kind_of
from engine.model import quantization
from engine.model.coverage import ARCHITECTURES, Use
from engine.model.model_folder import ModelFolder
from engine.model.tasks import Task
from engine.registry import CPU, CUDA, FUSED, STATIC, TENSORRT_LLM
from engine.store.model_source import ResolvedModel, find_here
from engine.tensorrt_llm.contract import contract
from engine.tensorrt_llm.planning import package
from engine.tensorrt_llm.planning.plan import KNOWN_CLASSES, plan
from engine.types import ModelError
from server.commands import probe as doctor_probe
from server.commands.findings import MIB, Finding, aligned, facts, lines
from server.commands.probe import Environment
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.model_files import cache_folder, without_pickles
from server.supervisor.model_plan import check_engine_python, find_cuda, plan_model, read_folder, tensorrt_llm_flags
from tokenizer_pool.config_files import TokenizerError
from tokenizer_pool.loading import load

_USES = {
    Task.EMBED: Use.EMBED,
    Task.RERANK: Use.RERANK,
    Task.CLASSIFY: Use.CLASSIFY,
    Task.TOKEN_CLASSIFY: Use.TOKEN_CLASSIFY,
    Task.SPARSE: Use.SPARSE,
    Task.LATE_INTERACTION: Use.LATE_INTERACTION,
}
# What engines and the server are made of; the first names of modules.
MODULES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "openvino",
    "triton",
    "tensorrt_llm",
    "huggingface_hub",
)
_SHM = Path("/dev/shm")
_SMALL_SHM = 1 << 30  # Docker gives 64 MiB
_PROBE_SECONDS = 20.0  # a Python on a network's disk takes its time; nothing that takes time is imported
_CPU_FEATURES = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16")
_NOT_SO = 1  # exit code


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine: what the verdicts need, and what is shown."""

    cuda: Cuda  # as the driver tells
    own: Environment  # the server's
    engines: Environment  # of engine processes: the same without --engine-python
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is known of the model named, without loading it."""

    findings: tuple[Finding, ...]
    folder: ModelFolder | None = None  # None = it is not on this machine, or can't be served by anything
    trouble: str = ""  # why nothing serves it as it is asked for


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result."""

    engine: str | None  # what a start would take; None = nothing
    reason: str
    can_serve: bool  # whether that, or with --engine auto another that could be named, serves the model


def doctor(settings: Settings, *, as_json: bool) -> int:
    """Print what there is; the exit code: 0 where the engine asked for, or with auto any, can serve the first model.

    Raises SettingsError where what is asked for makes no sense anywhere.
    """
    machine = examine(settings)
    asked = settings.models[0]
    model = _with_others(_model(asked, settings), settings.models[1:])
    inputs = VerdictInputs(model=asked, folder=model.folder, cuda=find_cuda(settings), environment=machine.engines)
    found = verdicts(inputs)
    outcome = _outcome(inputs, model, found, settings)
    print(_as_json(machine, model, found, outcome) if as_json else _as_text(machine, model, found, outcome))
    return 0 if outcome.can_serve else _NOT_SO


def check_library(source: str, *, as_json: bool) -> int:
    """Print how a tensorrt_llm compares with what its engine relies on; the exit code: 0 where that is all there.

    Raises ModelError where the folder has no such package.
    """
    report = contract.check(Path(source))
    print(json.dumps(report.to_json(), indent=2) if as_json else report.text())
    return 0 if report.is_kept else _NOT_SO


def _model(asked: ModelSettings, settings: Settings) -> Model:
    """From a folder, the hub's cache or a package. Nothing is fetched from the hub."""
    cache = settings.huggingface_hub_cache
    name = Finding("name", asked.name)
    try:
        cache_dir = Path(cache) if cache else None
        here = find_here(asked.model_id, asked.revision, cache_dir=cache_dir, needs_modules=asked.needs_modules)
    except ModelError as error:
        return Model(findings=(name,), trouble=str(error))
    if here is None:
        trouble = f"it is not on this machine, or not all of it; `embedline inspect {asked.model_id}` fetches it"
        return Model(findings=(name,), trouble=trouble)
    findings = (name, Finding("folder", str(here.path), here.source))
    try:
        if asked.engine != registry.FAKE and asked.convert == "auto":
            here = without_pickles(here, settings, progress=None)
        return _read(here, asked, findings)
    except ModelError as error:
        return Model(findings=findings, trouble=str(error))


def _with_others(model: Model, others: Sequence[ModelSettings]) -> Model:
    """Say that only the first model was looked at."""
    if not others:
        return model
    unseen = Finding("others", [other.name for other in others], "not looked at: ask about each by itself")
    return dataclasses.replace(model, findings=(*model.findings, unseen))


def _read(here: ResolvedModel, asked: ModelSettings, findings: Iterable[Finding]) -> Model:
    folder = read_folder(here.path, asked, asked.engine)
    if asked.max_input_length is not None:
        folder = dataclasses.replace(folder, max_seqlen=min(folder.max_seqlen, asked.max_input_length))
    trouble = ""
    try:
        load(folder.path / folder.tokenizer_folder, do_lower_case=folder.do_lower_case)
    except TokenizerError as error:
        trouble = str(error)
    outputs = ", ".join(kind.name.lower() for kind in folder.outputs if kind.name)
    return Model(
        findings=(
            *findings,
            Finding("architecture", folder.architecture or "a table of static embeddings"),
            Finding("task", str(folder.task), f"{folder.task_source}; gives {outputs}"),
        ),
        folder=folder,
        trouble=trouble,
    )


def _outcome(inputs: VerdictInputs, model: Model, found: list[Verdict], settings: Settings) -> Outcome:
    """As at a start, except for what shows only when the model is loaded."""
    asked = inputs.model
    if model.folder is None or model.trouble:
        return Outcome(engine=None, reason=model.trouble, can_serve=False)
    try:
        plan = plan_model(asked, settings, cuda=lambda: inputs.cuda)
        if plan.engine != registry.AUTO:
            return _named(plan.engine, plan.reason, found)
        chosen = chosen_by_auto(found, kind_of_auto(inputs))
    except (ModelError, SettingsError) as error:
        return Outcome(engine=None, reason=str(error), can_serve=False)
    if chosen is not None:
        where = ", ".join(chosen.devices)
        return Outcome(engine=chosen.engine, reason=f"--engine auto takes {chosen.engine}, on {where}", can_serve=True)
    others = [verdict.engine for verdict in found if verdict.can_serve]
    hint = f"; --engine {' or '.join(others)} can serve it" if others else ""
    reason = f"--engine auto finds nothing that can serve the model here{hint}"
    return Outcome(engine=None, reason=reason, can_serve=bool(others))


def _named(engine: str, reason: str, found: list[Verdict]) -> Outcome:
    """An engine chosen by name, or the only one that does what is asked for."""
    verdict = next((verdict for verdict in found if verdict.engine == engine), None)
    can_serve = verdict is None or verdict.can_serve  # the fake engine serves anything
    end = "" if can_serve else ", which can't serve the model here"
    return Outcome(engine=engine if can_serve else None, reason=f"{reason}{end}", can_serve=can_serve)


def _as_json(machine: Machine, model: Model, found: list[Verdict], outcome: Outcome) -> str:
    """Facts by name, and who says so beside them."""
    value = {
        "machine": facts(machine.findings),
        "model": {**facts(model.findings), "trouble": model.trouble or None},
        "engines": {
            verdict.engine: {
                "can_serve": verdict.can_serve,
                "devices": verdict.devices,
                "why_not": verdict.why_not,
                "notes": verdict.notes,
            }
            for verdict in found
        },
        "engine": outcome.engine,
        "reason": outcome.reason,
        "can_serve": outcome.can_serve,
    }
    return json.dumps(value, indent=2, ensure_ascii=False)


def _as_text(machine: Machine, model: Model, found: list[Verdict], outcome: Outcome) -> str:
    said = ["this machine", *lines(machine.findings, _shown), "the model", *lines(model.findings, _shown)]
    if model.trouble:
        said.append(aligned("trouble", model.trouble))
    said.append("engines" if model.folder else "engines, by this machine alone")
    for verdict in found:
        said += _verdict_lines(verdict, knows_model=model.folder is not None)
    return "\n".join([*said, "result", f"  {outcome.reason}"])


def _shown(finding: Finding) -> list[str]:
    """One or more lines of text."""
    if not finding.value:
        return ["none"]
    if finding.name.endswith("_bytes"):
        return [f"{finding.value / MIB:,.0f} MiB"]
    if finding.name == "gpus":
        return list(finding.value)
    return [", ".join(finding.value) if isinstance(finding.value, list) else str(finding.value)]


def _verdict_lines(verdict: Verdict, *, knows_model: bool) -> Iterator[str]:
    """A line for each reason against it, or one line that says where it can run."""
    able = f"{'can serve it' if knows_model else 'can run'}, on {', '.join(verdict.devices)}"
    said = [f"no: {reason}" for reason in verdict.why_not] or [able]
    for number, line in enumerate([*said, *verdict.notes]):
        yield aligned("" if number else verdict.engine, line)


def examine(settings: Settings) -> Machine:
    """Raises SettingsError where --engine-python can't be asked."""
    cuda = cuda_driver.find()
    own = doctor_probe.probe(MODULES)
    engines = own if settings.engine_python == sys.executable else _asked(settings.engine_python)
    found = cores.find()
    findings = [
        Finding("platform", f"{platform.platform()}, {platform.machine()}"),
        Finding("cpu", _cpu()),
        Finding("cores", found.usable, f"what processes and threads are sized for; {found}"),
        Finding("memory_bytes", host.memory(), "what this process may use"),
        *_shm(cuda),
        _cache(settings),
        Finding("cuda_driver", _driver(cuda)),
        Finding("gpus", [_gpu(gpu) for gpu in cuda.gpus]),
        *_of_python("python", own),
        *(_of_python("engine_python", engines) if engines is not own else ()),
    ]
    return Machine(cuda, own, engines, tuple(findings))


def _asked(python: str) -> Environment:
    """What another Python says of itself. Raises SettingsError where engines can't run under it."""
    check_engine_python(python)
    try:
        ended = subprocess.run(
            [python, "-P", str(Path(doctor_probe.__file__)), *MODULES],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PROBE_SECONDS,
            check=True,
        )
        return Environment(**json.loads(ended.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        raise SettingsError("--engine-python does not say which packages it has") from None


def _cpu() -> str:
    cpu = host.cpu()
    features = set(cpu.get("flags", cpu.get("Features", "")).split())
    known = [name for name in _CPU_FEATURES if name in features]
    return f"{cpu.get('model name', 'unknown')} ({', '.join(known) or 'no features that matter here'})"


def _shm(cuda: Cuda) -> list[Finding]:
    """Shared memory of the file system; only libraries of GPUs use much of it."""
    if not _SHM.is_dir():
        return [Finding("shm_bytes", None, f"there is no {_SHM}")]
    stat = os.statvfs(_SHM)
    size, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    is_small = bool(cuda.gpus) and size < _SMALL_SHM
    hint = "; TensorRT-LLM wants more: docker run --shm-size 2g" if is_small else ""
    return [Finding("shm_bytes", size, f"{_SHM}, {free // MIB:,} MiB free{hint}")]


def _cache(settings: Settings) -> Finding:
    try:
        folder = cache_folder(settings.compiled_cache, os.environ)
    except SettingsError as error:
        return Finding("compiled_cache", None, str(error))
    if folder is not None:
        return Finding("compiled_cache", folder, "can be written to")
    why = "--compiled-cache off" if settings.compiled_cache else "can't be written to; --compiled-cache names another"
    return Finding("compiled_cache", None, why)


def _driver(cuda: Cuda) -> str:
    return f"for CUDA {cuda.version[0]}.{cuda.version[1]}" if cuda.gpus else f"none: {cuda.why_none}"


def _gpu(gpu: Gpu) -> str:
    """One line: what it is, and what it computes in."""
    computes = [
        *(["bfloat16"] if devices.has_bfloat16(gpu.capability) else []),
        *(["FP8"] if devices.has_fp8(gpu.capability) else []),
    ]
    return f"{gpu}, {gpu.num_bytes // MIB:,} MiB: {' and '.join(computes) or 'neither bfloat16 nor FP8'}"


def _of_python(name: str, environment: Environment) -> list[Finding]:
    there = [f"{module} {version or '(no version)'}" for module, version in environment.versions.items()]
    lacks = ", ".join(environment.lacks(MODULES))
    return [
        Finding(name, environment.version, environment.python),
        Finding(f"{name}_packages", there, f"not there: {lacks}" if lacks else ""),
    ]


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


def kind_of_auto(inputs: VerdictInputs) -> str:
    """Where `--devices` as it is given has `--engine auto` compute: "cpu" or "cuda". Raises ModelError."""
    model = inputs.model
    chosen = devices.choose(model.devices, Work(registry.AUTO, model.dtype, model.quantization), inputs.cuda)
    kind = kind_of(chosen.names[0])
    assert kind in (CPU, CUDA)
    return kind


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

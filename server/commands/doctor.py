"""`embedline doctor`: what this machine has, which engines can serve a model here, and why others can't.

Starts nothing, loads no weights and fetches nothing, so a verdict is what can be known without that.
"""

import dataclasses
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine import registry
from engine.machine import cores, cuda_driver, devices, host
from engine.machine.cuda_driver import Cuda, Gpu
from engine.machine.devices import Work
from engine.model.model_folder import ModelFolder
from engine.offer import ServingTarget, Verdict, verdict_of
from engine.store.model_source import ResolvedModel, find_here
from engine.types import ModelError
from server.commands import probe as doctor_probe
from server.commands.findings import MIB, Finding, aligned, facts, lines
from server.commands.probe import Environment
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.model_files import cache_folder, without_pickles
from server.supervisor.model_plan import check_engine_python, find_cuda, plan_model, read_folder
from tokenizer_pool.loading import load
from wire.tokenizer_files import TokenizerError

# What engines and the server are made of, beside what the table of engines says: the first names of modules.
_MODULES = (
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

    engines: Environment  # of engine processes: the server's own without --engine-python
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What `doctor` knows of the model named, without loading it."""

    findings: tuple[Finding, ...]
    folder: ModelFolder | None = None  # None = it is not on this machine, or can't be served by anything
    trouble: str = ""  # why nothing serves it as it is asked for


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
    model = _model(asked, settings)
    if others := [other.name for other in settings.models[1:]]:
        unseen = Finding("others", others, "not looked at: ask about each by itself")
        model = dataclasses.replace(model, findings=(*model.findings, unseen))
    python, cuda = machine.engines, find_cuda(settings)
    seen = ServingTarget(flags=asked, folder=model.folder, cuda=cuda, python=python.python, installed=python.versions)
    found = [verdict_of(row, seen) for row in registry.ENGINES.values() if row.packages]
    outcome = _outcome(model, found, settings, cuda)
    print(_as_json(machine, model, found, outcome) if as_json else _as_text(machine, model, found, outcome))
    return 0 if outcome.can_serve else _NOT_SO


def _model(asked: ModelSettings, settings: Settings) -> Model:
    """The model from a folder, the hub's cache or a package. Nothing is fetched from the hub."""
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


def _outcome(model: Model, found: list[Verdict], settings: Settings, cuda: Cuda) -> Outcome:
    """The outcome of a start, except for what shows only when the model is loaded."""
    asked = settings.models[0]
    if model.folder is None or model.trouble:
        return Outcome(engine=None, reason=model.trouble, can_serve=False)
    try:
        plan = plan_model(asked, settings, cuda=lambda: cuda)
        if plan.engine != registry.AUTO:
            return _named(plan.engine, plan.reason, found)
        work = Work(registry.AUTO, asked.dtype, asked.quantization)
        chosen = chosen_by_auto(found, devices.choose(asked.devices, work, cuda).kind)
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


def modules() -> tuple[str, ...]:
    """The modules that a Python is asked for."""
    of_engines = (package for row in registry.ENGINES.values() for package in row.packages)
    return tuple(dict.fromkeys((*_MODULES, *of_engines)))


def examine(settings: Settings) -> Machine:
    """What this machine has. Raises SettingsError where --engine-python can't be asked."""
    cuda = cuda_driver.find()
    own = doctor_probe.probe(modules())
    engines = own if settings.engine_python == sys.executable else _asked(settings.engine_python)
    found = cores.find()
    driver = f"for CUDA {cuda.version[0]}.{cuda.version[1]}" if cuda.gpus else f"none: {cuda.why_none}"
    findings = [
        Finding("platform", f"{platform.platform()}, {platform.machine()}"),
        Finding("cpu", _cpu()),
        Finding("cores", found.usable, f"what processes and threads are sized for; {found}"),
        Finding("memory_bytes", host.memory(), "what this process may use"),
        *_shm(cuda),
        _cache(settings),
        Finding("cuda_driver", driver),
        Finding("gpus", [_gpu(gpu) for gpu in cuda.gpus]),
        *_of_python("python", own),
        *(_of_python("engine_python", engines) if engines is not own else ()),
    ]
    return Machine(engines, tuple(findings))


def _asked(python: str) -> Environment:
    """The environment that another Python says it has. Raises SettingsError where engines can't run under it."""
    check_engine_python(python)
    try:
        ended = subprocess.run(
            [python, "-P", str(Path(doctor_probe.__file__)), *modules()],
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


def _gpu(gpu: Gpu) -> str:
    computes = [
        *(["bfloat16"] if devices.has_bfloat16(gpu.capability) else []),
        *(["FP8"] if devices.has_fp8(gpu.capability) else []),
    ]
    return f"{gpu}, {gpu.num_bytes // MIB:,} MiB: {' and '.join(computes) or 'neither bfloat16 nor FP8'}"


def _of_python(name: str, environment: Environment) -> list[Finding]:
    there = [f"{module} {version or '(no version)'}" for module, version in environment.versions.items()]
    lacks = ", ".join(environment.lacks(modules()))
    return [
        Finding(name, environment.version, environment.python),
        Finding(f"{name}_packages", there, f"not there: {lacks}" if lacks else ""),
    ]


def chosen_by_auto(found: list[Verdict], kind: str) -> Verdict | None:
    """The engine that `--engine auto` chooses on devices of this kind; None where none can serve the model."""
    # The static engine can serve only tables of static embeddings, which no other engine serves.
    tried = (registry.STATIC, *registry.tried_by_auto(kind))
    by_name = {verdict.engine: verdict for verdict in found}
    return next((by_name[name] for name in tried if by_name[name].can_serve), None)

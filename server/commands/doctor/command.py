"""`embedline doctor`: what this machine has, which engines can serve a model here, and why others can't.

Starts nothing, loads no weights and fetches nothing.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine import registry
from engine.model.model_folder import ModelFolder
from engine.store.model_source import ResolvedModel, find_here
from engine.tensorrt_llm.contract import contract
from engine.types import ModelError
from server.commands.doctor import machine as doctor_machine
from server.commands.doctor.engines import Verdict, VerdictInputs, chosen_by_auto, kind_of_auto, verdicts
from server.commands.doctor.machine import Machine
from server.commands.findings import MIB, Finding, aligned, facts, lines
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.planning.model_files import without_pickles
from server.supervisor.planning.model_plan import find_cuda, plan_model, read_folder
from tokenizer_pool.files.config_files import TokenizerError
from tokenizer_pool.files.loading import load

_NOT_SO = 1  # exit code


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is known of the model named, without loading it."""

    findings: tuple[Finding, ...]
    folder: ModelFolder | None = None  # None = it is not on this machine, or can't be served by anything
    trouble: str = ""  # why nothing serves it as it is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result."""

    engine: str | None  # what a start would take; None = nothing
    reason: str
    can_serve: bool  # whether that, or with --engine auto another that could be named, serves the model


def check_library(source: str, *, as_json: bool) -> int:
    """Print how a tensorrt_llm compares with what its engine relies on; the exit code: 0 where that is all there.

    Raises ModelError where the folder has no such package.
    """
    report = contract.check(Path(source))
    print(json.dumps(report.to_json(), indent=2) if as_json else report.text())
    return 0 if report.is_kept else _NOT_SO


def doctor(settings: Settings, *, as_json: bool) -> int:
    """Print what there is; the exit code: 0 where the engine asked for, or with auto any, can serve the first model.

    Raises SettingsError where what is asked for makes no sense anywhere.
    """
    machine = doctor_machine.examine(settings)
    asked = settings.models[0]
    model = _with_others(_model(asked, settings), settings.models[1:])
    inputs = VerdictInputs(model=asked, folder=model.folder, cuda=find_cuda(settings), environment=machine.engines)
    found = verdicts(inputs)
    outcome = _outcome(inputs, model, found, settings)
    print(_as_json(machine, model, found, outcome) if as_json else _as_text(machine, model, found, outcome))
    return 0 if outcome.can_serve else _NOT_SO


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

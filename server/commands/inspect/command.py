"""`embedline inspect`: what is known of a model before it is loaded, and which file or flag says so.

Reads JSON files, the headers of the weights and the tokenizer, and loads no weight.
"""

import json
import os
import sys
from typing import Any

from engine import registry
from engine.machine import devices
from engine.model.arrays import weights_files
from engine.model.model_folder import ModelFolder
from engine.model.steps import Dense, LayerNorm, Normalize, Step
from engine.model.tasks import TokenVectors
from engine.model.weights import Weights, weight_files, weights_of
from engine.types import ModelError, OutputKind
from server.commands.inspect.task import Finding, task_findings
from server.settings.settings import Settings
from server.supervisor.compiled_cache import cache_folder
from server.supervisor.model_plan import ModelPlan, find_cuda, plan_model
from tokenizer_pool.loading import TokenizerError, load

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_MIB = 1 << 20
_LABEL_WIDTH = 15


def inspect(settings: Settings, *, as_json: bool) -> int:
    """Print what is known of the first model. Raises SettingsError and ModelError where it can't be served."""
    plan = plan_model(settings.models[0], settings, cuda=lambda: find_cuda(settings))
    folder = plan.folder
    weights = weights_of(folder.weights_folder, weights_files(folder.path, (*folder.steps, *_beside(folder))))
    found = [*findings(plan, weights), *_of_this_machine(plan, settings)]
    warned = warnings(plan, weights)
    print(_as_json(found, warned) if as_json else _as_text(plan, found, warned))
    return 0


def findings(plan: ModelPlan, weights: Weights) -> list[Finding]:
    """In the order in which they are shown."""
    folder = plan.folder
    return [
        Finding("name", plan.name),
        Finding("folder", str(folder.path), plan.source),
        Finding("revision", plan.revision or None),
        Finding("architecture", folder.architecture or None, _architecture_source(folder)),
        *task_findings(folder),
        *_pooling_findings(folder),
        Finding("max_seqlen", folder.max_seqlen, folder.max_seqlen_source),
        Finding("dimensions", folder.dimensions, _dimensions_source(folder)),
        Finding("vocab_size", folder.vocab_size, "config.json"),
        Finding("tokenizer", _tokenizer(plan), "tokenizer.json"),
        Finding("prompts", dict(folder.prompts), "config_sentence_transformers.json" if folder.prompts else ""),
        Finding("default_prompt", plan.default_prompt or None, _prompt_source(plan)),
        Finding("engine", plan.engine, plan.reason),
        Finding("devices", list(plan.devices.names), plan.devices.reason),
        Finding("stored", plan.stored.text if plan.stored else "plain", "the model's files"),
        Finding("num_parameters", weights.num_parameters, "the weights' headers"),
        Finding("weights_bytes", weights.num_bytes, "the weights' headers"),
        Finding("memory_bytes", _memory(plan, weights), f"weights of one engine in {_dtype(plan)}, estimated"),
        Finding("notes", list(folder.notes)),
    ]


def _architecture_source(folder: ModelFolder) -> str:
    return ", ".join(folder.architectures) or ("a table alone" if folder.is_static else "config.json")


def _pooling_findings(folder: ModelFolder) -> list[Finding]:
    """Of a model that gives a row for a text."""
    if OutputKind.POOLED not in folder.outputs:
        return []
    return [
        Finding("pooling", folder.pooling, folder.pooling_source),
        Finding("normalize", folder.normalize, "modules.json" if folder.normalize else "no Normalize module"),
    ]


def _beside(folder: ModelFolder) -> list[Step]:
    """Layers of heads that lie in files of their own."""
    steps = (step for head in folder.heads if isinstance(head, TokenVectors) for step in head.steps)
    own = {file.name for file in weight_files(folder.path)} if folder.heads else set()
    return [step for step in steps if isinstance(step, Normalize) or step.folder not in own]


def _of_this_machine(plan: ModelPlan, settings: Settings) -> list[Finding]:
    """What a start here would find beside the model. Raises SettingsError where --compiled-cache can't be."""
    found = []
    if plan.engine == registry.AUTO and settings.engine_python == sys.executable:
        tried = registry.tried_by_auto(plan.devices.kind)
        found.append(Finding("engines", [_state(name, tried) for name in tried]))
    if plan.engine != "fake":
        cache = cache_folder(settings.compiled_cache, os.environ)
        found.append(Finding("compiled_cache", cache, "--compiled-cache" if settings.compiled_cache else ""))
    return found


def _state(engine: str, tried: dict[str, bool]) -> str:
    if not tried[engine]:
        return f"{engine}: not installed"
    is_first = engine == next(name for name, is_installed in tried.items() if is_installed)
    return f"{engine}: installed, tried {'first' if is_first else 'if none before it can serve the model'}"


def warnings(plan: ModelPlan, weights: Weights) -> list[str]:
    """What its operator may want to change."""
    model, folder = plan.settings, plan.folder
    found = []
    if folder.prompts and not plan.default_prompt:
        found.append("the model has prompts, and texts get none: --default-prompt-name chooses one")
    if plan.source.startswith("hub") and model.revision is None:
        found.append("no --revision: another start may serve other weights")
    if too_small := _too_small(plan, _memory(plan, weights)):
        found.append(f"the weights are larger than {too_small}")
    if model.engine == "fake":
        found.append("--engine fake: rows are not computed by the model")
    return found


def _too_small(plan: ModelPlan, num_bytes: int) -> str:
    """The memory that does not hold the weights, "" where they fit."""
    if plan.devices.gpus:
        smallest = min(plan.devices.gpus, key=lambda gpu: gpu.num_bytes)
        return f"the memory of {smallest.device}" if num_bytes > smallest.num_bytes else ""
    return "this machine's memory" if num_bytes * len(plan.devices.names) > _machine_bytes() else ""


def _dimensions_source(folder: ModelFolder) -> str:
    """The last file that has a say in it."""
    sized = [step.folder for step in folder.steps if isinstance(step, Dense | LayerNorm)]
    return f"{sized[-1]}/config.json" if sized else "config.json"


def _tokenizer(plan: ModelPlan) -> str:
    """The kind of its model. Raises ModelError where no tokenizer can be made of the folder."""
    try:
        tokenizer = load(plan.folder.path / plan.folder.tokenizer_folder, do_lower_case=plan.folder.do_lower_case)
    except TokenizerError as error:
        raise ModelError(str(error)) from None
    return type(tokenizer.model).__name__


def _prompt_source(plan: ModelPlan) -> str:
    if plan.settings.default_prompt is not None:
        return "--default-prompt"
    if plan.settings.default_prompt_name is not None:
        return "--default-prompt-name"
    return "config_sentence_transformers.json" if plan.default_prompt else ""


def _dtype(plan: ModelPlan) -> str:
    least = min((gpu.capability for gpu in plan.devices.gpus), default=None)
    return plan.settings.dtype.replace("auto", devices.dtype_of_auto(least))


def _memory(plan: ModelPlan, weights: Weights) -> int:
    """Bytes of the weights as an engine holds them; quantized ones are at most as large."""
    return sum(weights.num_parameters.values()) * _BYTES[_dtype(plan)]


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _as_json(found: list[Finding], warned: list[str]) -> str:
    """Facts by name, and who says so beside them."""
    facts = {finding.name: finding.value for finding in found}
    sources = {finding.name: finding.source for finding in found if finding.source}
    return json.dumps({**facts, "sources": sources, "warnings": warned}, indent=2, ensure_ascii=False)


def _as_text(plan: ModelPlan, found: list[Finding], warned: list[str]) -> str:
    lines = [plan.name]
    for finding in found[1:]:
        source = f"  ({finding.source})" if finding.source else ""
        for number, value in enumerate(_shown(finding.name, finding.value)):
            label = finding.name.removesuffix("_bytes").replace("_", " ") if not number else ""
            lines.append(f"  {label:<{_LABEL_WIDTH}} {value}{'' if number else source}")
    return "\n".join([*lines, *(f"  warning: {one}" for one in warned)])


def _shown(name: str, value: Any) -> list[str]:
    """One or more lines of text."""
    if name.endswith("_bytes"):
        return [f"{value / _MIB:,.0f} MiB"]
    if name == "num_parameters":
        return [", ".join(f"{num:,} {dtype}" for dtype, num in value.items())]
    if isinstance(value, bool):
        return ["yes" if value else "no"]
    if isinstance(value, dict):
        return [f"{key}: {text!r}" for key, text in value.items()] or ["none"]
    if isinstance(value, list):
        return value or ["none"]
    if isinstance(value, int):
        return [f"{value:,}"]
    return ["none" if value is None else repr(value) if name == "default_prompt" else str(value)]

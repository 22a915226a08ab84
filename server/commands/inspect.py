"""`embedline inspect`: what is known of a model before it is loaded, and which file or flag it comes from.

Reads JSON files, the headers of the weights and the tokenizer, and loads no weight.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from engine import registry
from engine.machine import devices
from engine.model.detection.templates import template_name
from engine.model.model_folder import ModelFolder
from engine.model.sentence_files import CONFIG
from engine.model.tasks import Dense, LateInteraction, LayerNorm, Normalize, Step, Task, TokenVectors, head_in_words
from engine.model.weights import WeightSizes, checkpoint_files, step_files, weights_of
from engine.types import ModelError, OutputKind
from server.commands.findings import MIB, Finding, facts, lines
from server.requests.prompts import library_differences
from server.settings.settings import Settings
from server.supervisor.model_files import NotConvertedError, cache_folder
from server.supervisor.model_plan import ModelPlan, find_cuda, plan_model
from tokenizer_pool.loading import load
from wire.tokenizer_files import TokenizerError

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_MAX_LABELS = 5  # that are shown


def inspect(settings: Settings, *, as_json: bool) -> int:
    """Print what is known of the first model. Raises SettingsError and ModelError where it can't be served."""
    try:
        plan = plan_model(settings.models[0], settings, cuda=lambda: find_cuda(settings))
    except NotConvertedError as error:  # the model's heads are in its weights
        _print([Finding("name", settings.models[0].name), Finding("weights", str(error))], [], as_json=as_json)
        return 0
    folder = plan.folder
    weights = weights_of(folder.weights_folder, step_files(folder.path, (*folder.steps, *_beside(folder))))
    _print([*findings(plan, weights), *_of_this_machine(plan, settings)], warnings(plan, weights), as_json=as_json)
    return 0


def _print(found: list[Finding], warned: list[str], *, as_json: bool) -> None:
    """The first finding is the model's name."""
    if as_json:
        print(json.dumps({**facts(found), "warnings": warned}, indent=2, ensure_ascii=False))
    else:
        print("\n".join([found[0].value, *lines(found[1:], _shown), *(f"  warning: {one}" for one in warned)]))


def findings(plan: ModelPlan, weights: WeightSizes) -> list[Finding]:
    """The findings in the order in which they are shown."""
    folder = plan.folder
    table_or_config = "a table alone" if folder.is_static else "config.json"
    cuts = {"truncate_dim": folder.truncate_dim, "max_active_dims": folder.max_active_dims}  # unless a request says
    return [
        Finding("name", plan.name),
        Finding("folder", str(folder.path), plan.source),
        Finding("revision", plan.revision or None),
        Finding("fingerprint", dataclasses.asdict(plan.identity), "without the compute type, which the engine says"),
        Finding("architecture", folder.architecture or None, ", ".join(folder.architectures) or table_or_config),
        *_task_findings(folder),
        *_pooling_findings(folder),
        Finding("max_seqlen", folder.max_seqlen, folder.max_seqlen_source),
        Finding("dimensions", folder.dimensions, _dimensions_source(folder)),
        *(Finding(key, most, CONFIG) for key, most in cuts.items() if most is not None),
        Finding("vocab_size", folder.vocab_size, "config.json"),
        Finding("tokenizer", _tokenizer(plan), "tokenizer.json"),
        Finding("special_tokens", plan.special_tokens),
        Finding("prompts", dict(folder.prompts), folder.prompts_source if folder.prompts else ""),
        Finding("default_prompt", plan.default_prompt or None, _prompt_source(plan)),
        *(Finding("other_prompts", others, "docs/models.md, Prompts") for others in [other_prompts(folder)] if others),
        *((Finding("adapters", list(folder.adapters), "config.json"),) if folder.adapters else ()),
        *((Finding("loras", {lora.name: lora.folder for lora in plan.loras}, "--lora"),) if plan.loras else ()),
        Finding("engine", plan.engine, plan.reason),
        Finding("devices", list(plan.devices.names), plan.devices.reason),
        Finding("stored", plan.stored.text if plan.stored else "plain", "the model's files"),
        Finding("num_parameters", weights.num_parameters, "the weights' headers"),
        Finding("weights_bytes", weights.num_bytes, "the weights' headers"),
        Finding("memory_bytes", _memory(plan, weights), f"weights of one engine in {_dtype(plan)}, estimated"),
        Finding("notes", [*folder.notes, *(f"--lora {lora.name}: {lora.note}" for lora in plan.loras if lora.note)]),
    ]


def _task_findings(folder: ModelFolder) -> list[Finding]:
    found = [
        Finding("task", str(folder.task), folder.task_source),
        Finding("outputs", [kind.name.lower() for kind in folder.outputs if kind.name]),
    ]
    if folder.heads:
        found.append(Finding("heads", [head_in_words(head) for head in folder.heads]))
    if folder.labels:
        more = ["…"] if len(folder.labels) > _MAX_LABELS else []
        found.append(Finding("labels", [*folder.labels[:_MAX_LABELS], *more], f"config.json: {len(folder.labels)}"))
    if folder.task in (Task.RERANK, Task.CLASSIFY, Task.TOKEN_CLASSIFY):
        found.append(Finding("activation", str(folder.activation)))
    if folder.template:
        source = "modality_config" if folder.template.chat else "known here; its words are not read"
        found.append(Finding("template", template_name(folder.template), source))
        found.append(Finding("instruction", folder.template.instruction or None))
    if folder.query_table:
        found.append(Finding("queries", f"a weight for each token, from {folder.query_table.folder}", "a Router"))
    if folder.late:
        found.append(Finding("late_interaction", _late_in_words(folder.late)))
    return found


def _late_in_words(late: LateInteraction) -> dict[str, Any]:
    """The settings of late interaction that differ from doing nothing."""
    usual = LateInteraction()
    changed = {
        field.name: value
        for field in dataclasses.fields(late)
        if (value := getattr(late, field.name)) != getattr(usual, field.name)
    }
    changed.pop("marks_text_start", None)  # where the markers stand; the ids say that there are some
    if late.skipped_ids:
        changed["skipped_ids"] = f"{len(late.skipped_ids)} tokens"
    return changed


def other_prompts(folder: ModelFolder) -> list[str]:
    """Where sentence-transformers puts other prompts before queries and documents than the server, of a model whose
    prompts it reads."""
    is_read = folder.prompts_source == CONFIG and folder.task in (Task.EMBED, Task.SPARSE)
    return library_differences(folder) if is_read else []


def _pooling_findings(folder: ModelFolder) -> list[Finding]:
    if OutputKind.POOLED not in folder.outputs:
        return []
    return [
        Finding("pooling", folder.pooling, folder.pooling_source),
        Finding("normalize", folder.normalize, "modules.json" if folder.normalize else "no Normalize module"),
        *((Finding("rounding", "127 times tanh, as int8", "the model's own code"),) if folder.rounds else ()),
    ]


def _beside(folder: ModelFolder) -> list[Step]:
    """Layers of heads that lie in files of their own."""
    steps = (step for head in folder.heads if isinstance(head, TokenVectors) for step in head.steps)
    own = {file.name for file in checkpoint_files(folder.path)} if folder.heads else set()
    return [step for step in steps if isinstance(step, Normalize) or step.folder not in own]


def _of_this_machine(plan: ModelPlan, settings: Settings) -> list[Finding]:
    found = []
    if plan.engine == registry.AUTO and settings.engine_python == sys.executable:
        found.append(Finding("engines", list(_states(registry.tried_by_auto(plan.devices.kind)))))
    if plan.engine != "fake":
        cache = cache_folder(settings.compiled_cache, os.environ)
        found.append(Finding("compiled_cache", cache, "--compiled-cache" if settings.compiled_cache else ""))
    return found


def _states(tried: dict[str, bool]) -> Iterator[str]:
    when = "first"
    for engine, is_installed in tried.items():
        yield f"{engine}: installed, tried {when}" if is_installed else f"{engine}: not installed"
        if is_installed:
            when = "if none before it can serve the model"


def warnings(plan: ModelPlan, weights: WeightSizes) -> list[str]:
    """The warnings for its operator, who may want to change something."""
    model, folder = plan.settings, plan.folder
    found = []
    if folder.prompts and not plan.default_prompt:
        found.append(
            "the model has prompts, and a text without input_type gets none: --default-prompt-name chooses one"
        )
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
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return "this machine's memory" if num_bytes * len(plan.devices.names) > machine_bytes else ""


def _dimensions_source(folder: ModelFolder) -> str:
    """The last file that has a say in it."""
    sized = [step.source for step in folder.steps if isinstance(step, Dense | LayerNorm)]
    return sized[-1] if sized else "config.json"


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
    return plan.folder.prompts_source if plan.default_prompt else ""


def _dtype(plan: ModelPlan) -> str:
    least = min((gpu.capability for gpu in plan.devices.gpus), default=None)
    return plan.settings.dtype.replace("auto", devices.dtype_of_auto(least))


def _memory(plan: ModelPlan, weights: WeightSizes) -> int:
    """Bytes of the weights as an engine holds them; quantized ones are at most as large."""
    return sum(weights.num_parameters.values()) * _BYTES[_dtype(plan)]


def _shown(finding: Finding) -> list[str]:
    name, value = finding.name, finding.value
    if name.endswith("_bytes"):
        return [f"{value / MIB:,.0f} MiB"]
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

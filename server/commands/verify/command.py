"""`embedline verify`: compares the rows that are served here with the model's own. Starts no server.

A quantized model is held against the same model with plain weights, as a start would measure it; today that is FP8.
Any other is held against the library that it was made with (verify_reference).
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from engine import registry
from engine.machine import cores
from engine.types import ModelError
from server.commands.convert import clean_exit_on_sigterm
from server.commands.findings import aligned
from server.commands.progress import shown
from server.commands.verify import comparison
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.planning.compiled_cache import cache_folder
from server.supervisor.planning.engine_options import engine_options
from server.supervisor.planning.model_plan import ModelPlan, find_cuda, plan_model
from tokenizer_pool.files.config_files import TokenizerError
from tokenizer_pool.files.loading import load

if TYPE_CHECKING:
    from engine.fused.quantization.verify import Verified
    from engine.selftest.fidelity import Fidelity

_ENGINE, _QUANTIZATION = registry.FUSED, "fp8"
_PLAIN_AGAIN = 1  # exit code: a server would serve the model, without a layer quantized


def verify(settings: Settings, *, as_json: bool) -> int:
    """Print how near the first model's rows are to what they should be, on the first of its devices; the exit code: 0
    where they are near enough, with --quantization fp8 where at least a part of the model can be served so.

    Raises SettingsError and ModelError where that can't be measured.
    """
    model = settings.models[0]
    if model.quantization != _QUANTIZATION:
        return comparison.verify(_plan(model, settings), settings, as_json=as_json)
    plan = _plan(_asked(model), settings)
    _check_tokenizer(plan)
    verified = _verified(plan, settings)
    print(_as_json(plan, verified) if as_json else _as_text(plan, verified))
    return 0 if verified.outcome.passed else _PLAIN_AGAIN


def _plan(model: ModelSettings, settings: Settings) -> ModelPlan:
    """As a start has it, with weights converted that are pickles. Raises SettingsError and ModelError."""
    with clean_exit_on_sigterm():
        return plan_model(model, settings, cuda=lambda: find_cuda(settings), progress=shown)


def _asked(model: ModelSettings) -> ModelSettings:
    """Raises SettingsError for what does not quantize so."""
    if model.engine not in (registry.AUTO, _ENGINE):
        raise SettingsError(f"--engine {model.engine} can't be verified with {_QUANTIZATION}; {_ENGINE} can")
    return dataclasses.replace(model, engine=_ENGINE)


def _check_tokenizer(plan: ModelPlan) -> None:
    """Without one, figures would be those of arbitrary ids. Raises ModelError."""
    try:
        load(plan.folder.path, do_lower_case=plan.folder.do_lower_case)
    except TokenizerError as error:
        raise ModelError(str(error)) from None


def _verified(plan: ModelPlan, settings: Settings) -> "Verified":
    options = engine_options(
        plan,
        plan.devices.names[0],
        cache_dir=cache_folder(settings.compiled_cache, os.environ),
        max_cache_bytes=settings.compiled_cache_limit,
        num_threads=settings.cpu_threads or cores.usable(),
    )
    try:
        from engine.fused.quantization import verify as fused  # imports torch

        return fused.verify(plan.name, options)
    except ModuleNotFoundError as error:
        raise ModelError(
            f"--quantization {_QUANTIZATION} needs {error.name}, which is not installed: pip install 'embedline[cuda]'"
        ) from error


def _as_json(plan: ModelPlan, verified: "Verified") -> str:
    outcome = verified.outcome
    facts = {
        "model": plan.name,
        "folder": str(plan.folder.path),
        "revision": plan.revision or None,
        "engine": plan.engine,
        "device": plan.devices.names[0],
        "gpu": verified.gpu,
        "quantization": plan.settings.quantization,
        "scheme": verified.scheme,
        "against": f"the same model with plain weights in {verified.dtype}",
        "measured": "anew",
        "num_texts": outcome.num_texts,
        "num_tokens": outcome.num_tokens,
        "max_tokens": outcome.max_seqlen,
        "limits": verified.limits,
        "all_layers": _measured(outcome.fidelity_of_all),
        "served": _measured(outcome.fidelity) if outcome.quantized else None,
        "noise_floor": _measured(verified.noise_floor) if verified.noise_floor else None,
        "quantized": list(outcome.quantized),
        "reverted": list(outcome.reverted),
        "passed": outcome.passed,
        "with_auto": verified.with_auto,
    }
    return json.dumps(facts, indent=2, ensure_ascii=False)


def _measured(found: "Fidelity") -> dict[str, float]:
    """Cosines are without the mean row."""
    return {
        "median": found.median_cosine,
        "p1": found.p1_cosine,
        "minimum": found.min_cosine,
        "overlap": found.overlap,
    }


def _as_text(plan: ModelPlan, verified: "Verified") -> str:
    lines = [plan.name]
    for label, value in _facts(plan, verified):
        lines.append(aligned(label, value))
    return "\n".join(lines)


def _facts(plan: ModelPlan, verified: "Verified") -> Iterator[tuple[str, str]]:
    """Labels, "" where the one before goes on, and what is said under them."""
    outcome = verified.outcome
    num_quantized, num_layers = len(outcome.quantized), len(outcome.quantized) + len(outcome.reverted)
    yield "quantization", f"{plan.settings.quantization} ({verified.scheme})"
    yield "against", f"the same model with plain weights in {verified.dtype}"
    yield "device", plan.devices.names[0]
    yield "gpu", verified.gpu or "none"
    longest = f"the longest of {outcome.max_seqlen:,}"
    yield "texts", f"{outcome.num_texts}, {outcome.num_tokens:,} tokens, {longest}; measured now"
    limits = verified.limits
    cosines = f"cosine median {limits['median']} or more, 1st percentile {limits['p1']} or more"
    yield "limits", f"{cosines}, without the mean row; {limits['overlap']:.0%} or more of the nearest texts the same"
    floor = verified.noise_floor
    yield "noise floor", f"{floor.figures}: bfloat16 against float32" if floor else "not measured: too little memory"
    verdict = "beyond the limits" if outcome.reverted else "within the limits"
    yield f"all {num_layers} layers", f"{outcome.fidelity_of_all.figures}: {verdict}"
    if outcome.reverted:
        for number, layer in enumerate(_by_layer(outcome.reverted)):
            yield "" if number else "plain again", layer
    if outcome.reverted and outcome.quantized:
        yield f"the other {num_quantized}", f"{outcome.fidelity.figures}: within the limits"
    yield "served", _served(plan, num_quantized, num_layers)
    yield "with auto", verified.with_auto


def _by_layer(names: Sequence[str]) -> Iterator[str]:
    """ "layers.3: qkv, gate_up" for names such as "layers.3.qkv"."""
    for layer, own in itertools.groupby(names, lambda name: name.rpartition(".")[0]):
        yield f"{layer}: {', '.join(name.rpartition('.')[2] for name in own)}"


def _served(plan: ModelPlan, num_quantized: int, num_layers: int) -> str:
    on_cpu = f"--engine {_ENGINE} --devices cpu " if plan.devices.names[0] == "cpu" else ""
    flags = f"{on_cpu}--quantization {_QUANTIZATION}"
    if not num_quantized:
        return f"with plain weights, also with {flags}"
    part = "all" if num_quantized == num_layers else f"{num_quantized} of"
    return f"in {_QUANTIZATION}, {part} {num_layers} linear layers, with {flags}"

"""`embedline verify`: compares the rows that are served here with the model's own. Starts no server.

A quantized model is held against the same model with plain weights, as a start would measure it; today that is FP8.
Any other is held against the library that it was made with: the fixed texts go through our tokenizer and the engine
that a start would take, and through the library.
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedline.progress import shown
from engine import registry
from engine.machine import cores
from engine.messages import LoadOptions
from engine.model.tasks import Task
from engine.selftest.comparison import TOLERANCE, agreement, is_near
from engine.types import Batch, Engine, EngineError, ModelError, ModelInfo, OutputKind, Rows, compute
from server.commands.findings import aligned
from server.commands.inspect import other_prompts
from server.commands.model_copies import clean_exit_on_sigterm
from server.features.verify import library as references
from server.features.verify.inputs import VerifyTexts, verify_texts
from server.features.verify.library import Reference
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.model_files import cache_folder
from server.supervisor.model_plan import ModelPlan, engine_options, find_cuda, plan_model
from tokenizer_pool.loading import load
from tokenizer_pool.tasks import TokenizedTexts
from wire.tokenizer_files import TokenizerError

if TYPE_CHECKING:
    from engine.fused.quantization.measures import Measured
    from engine.fused.quantization.verify import Verified

_Array = NDArray[np.float32]
_OUTPUTS = {
    Task.EMBED: OutputKind.POOLED,
    Task.SPARSE: OutputKind.SPARSE,
    Task.RERANK: OutputKind.LOGITS,
    Task.CLASSIFY: OutputKind.LOGITS,
    Task.TOKEN_CLASSIFY: OutputKind.TOKEN_LOGITS,
    Task.LATE_INTERACTION: OutputKind.MULTI_VECTOR,
}
# Compute type -> the least cosine of a row to the library's, and the largest difference over the largest value.
_LIMITS = {"float32": (0.999999, 1e-4)}
_LIMITS_OF_OTHERS = (0.99, 0.1)
_FAILED = 1  # exit code
_QUANTIZATION = "fp8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Figures of how near rows are to the library's."""

    num_texts: int
    num_tokens: int
    min_cosine: float  # of a row to the library's; of scores, of all texts' scores
    median_cosine: float
    min_cosine_without_mean: float  # the same without the mean row, see engine.selftest.comparison
    max_difference: float  # of one number
    max_value: float  # the library's largest
    passed: bool


def verify(settings: Settings, *, as_json: bool) -> int:
    """Print how near the first model's rows are to what they should be, on the first of its devices; the exit code: 0
    where they are near enough, with --quantization fp8 where at least a part of the model can be served so.

    Raises SettingsError and ModelError where that can't be measured.
    """
    model = settings.models[0]
    if model.lora:
        raise SettingsError("--lora can't be verified: name the adapter's folder as the model, which merges it")
    if model.quantization != _QUANTIZATION:
        return verify_by_library(_plan(model, settings), settings, as_json=as_json)
    plan = _plan(_asked(model), settings)
    _check_tokenizer(plan)
    verified = _verified(plan, settings)
    lines = (aligned(label, value) for label, value in _facts(plan, verified))
    print(_as_json(plan, verified) if as_json else "\n".join([plan.name, *lines]))
    return 0 if verified.outcome.passed else _FAILED


def _plan(model: ModelSettings, settings: Settings) -> ModelPlan:
    with clean_exit_on_sigterm():
        return plan_model(model, settings, cuda=lambda: find_cuda(settings), progress=shown)


def _asked(model: ModelSettings) -> ModelSettings:
    """The model on the engine that quantizes so. Raises SettingsError for another --engine."""
    if model.engine not in (registry.AUTO, registry.FUSED):
        raise SettingsError(f"--engine {model.engine} can't be verified with {_QUANTIZATION}; {registry.FUSED} can")
    return dataclasses.replace(model, engine=registry.FUSED)


def _check_tokenizer(plan: ModelPlan) -> None:
    """Refuse a model without a tokenizer: its figures would be those of arbitrary ids. Raises ModelError."""
    try:
        load(plan.folder.path, do_lower_case=plan.folder.do_lower_case)
    except TokenizerError as error:
        raise ModelError(str(error)) from None


def _options(plan: ModelPlan, settings: Settings) -> LoadOptions:
    return engine_options(
        plan,
        plan.devices.names[0],
        cache_dir=cache_folder(settings.compiled_cache, os.environ),
        max_cache_bytes=settings.compiled_cache_limit,
        num_threads=settings.cpu_threads or cores.usable(),
    )


def _verified(plan: ModelPlan, settings: Settings) -> "Verified":
    options = _options(plan, settings)
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
        "limits": _by_output(outcome.found_of_all, "limit"),
        "all_layers": _by_output(outcome.found_of_all, "value"),
        "served": _by_output(outcome.found, "value") if outcome.quantized else None,
        "noise_floor": _by_output(verified.noise_floor, "value") if verified.noise_floor else None,
        "quantized": list(outcome.quantized),
        "reverted": list(outcome.reverted),
        "passed": outcome.passed,
        "with_auto": verified.with_auto,
    }
    return json.dumps(facts, indent=2, ensure_ascii=False)


def _by_output(found: "Measured", field: str) -> dict[str, dict[str, float]]:
    """The values or the limits, for each output of the model by the figures' names."""
    by_output: dict[str, dict[str, float]] = {}
    for figure in found.figures:
        if (number := getattr(figure, field)) is not None:
            by_output.setdefault(figure.output, {})[figure.name] = number
    return by_output


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
    yield "limits", outcome.found_of_all.limits_in_words
    if wider := outcome.found_of_all.wider_than_usual.figures:
        yield "", f"of them {', '.join(figure.label for figure in wider)} at twice the noise floor"
    floor = verified.noise_floor
    yield "noise floor", f"{floor.in_words}: bfloat16 against float32" if floor else "not measured: too little memory"
    verdict = "beyond the limits" if outcome.reverted else "within the limits"
    yield f"all {num_layers} layers", f"{outcome.found_of_all.in_words}: {verdict}"
    if outcome.reverted:
        for number, layer in enumerate(_by_layer(outcome.reverted)):
            yield "" if number else "plain again", layer
    if outcome.reverted and outcome.quantized:
        yield f"the other {num_quantized}", f"{outcome.found.in_words}: within the limits"
    yield "served", _served(plan, num_quantized, num_layers)
    yield "with auto", verified.with_auto


def _by_layer(names: Sequence[str]) -> Iterator[str]:
    """ "layers.3: qkv, gate_up" for names such as "layers.3.qkv"."""
    for layer, own in itertools.groupby(names, lambda name: name.rpartition(".")[0]):
        yield f"{layer}: {', '.join(name.rpartition('.')[2] for name in own)}"


def _served(plan: ModelPlan, num_quantized: int, num_layers: int) -> str:
    on_cpu = f"--engine {registry.FUSED} --devices cpu " if plan.devices.names[0] == "cpu" else ""
    flags = f"{on_cpu}--quantization {_QUANTIZATION}"
    if not num_quantized:
        return f"with plain weights, also with {flags}"
    part = "all" if num_quantized == num_layers else f"{num_quantized} of"
    return f"in {_QUANTIZATION}, {part} {num_layers} linear layers, with {flags}"


def verify_by_library(plan: ModelPlan, settings: Settings, *, as_json: bool) -> int:
    """Print how near the rows here are to the library's; the exit code: 1 where that is below what the compute type
    lets one expect.

    Raises ModelError where it can't be found out.
    """
    if plan.engine == "fake":
        raise ModelError(f"there is nothing to verify {plan.name} against")
    asked = verify_texts(plan)
    rows, info = _our_rows(plan, settings, asked)
    reference = _of_our_class(plan, settings, asked) if plan.folder.is_translated else references.rows_of(plan, asked)
    found = _compare(rows, reference, info, asked.tokens)
    facts = {
        "model": plan.name,
        "folder": str(plan.folder.path),
        "task": plan.folder.task,
        "engine": info.engine,
        "device": info.device,
        "dtype": info.dtype,
        "against": f"{reference.library}, in float32 on a CPU, one text at a time",
        "texts": f"{found.num_texts}, {found.num_tokens:,} tokens",
        "token_ids": reference.ids.in_words,
        "not_verified": reference.not_verified or None,
        "other_prompts": other_prompts(plan.folder),
        "longest": asked.longest,
        "cosine": {
            "minimum": found.min_cosine,
            "median": found.median_cosine,
            "minimum_without_mean": found.min_cosine_without_mean,
        },
        "largest_difference": found.max_difference,
        "largest_value": found.max_value,
        "limits": dict(zip(("cosine", "difference"), _limits(info), strict=True)),
        "passed": found.passed,
    }
    lines = _lines(plan, info, found, reference, asked.longest)
    print(json.dumps(facts, indent=2, ensure_ascii=False) if as_json else "\n".join(lines))
    return 0 if found.passed else _FAILED


def _lines(plan: ModelPlan, info: ModelInfo, found: Agreement, reference: Reference, longest: str) -> Iterator[str]:
    cosine, difference = _limits(info)
    facts = {
        "task": plan.folder.task,
        "engine": f"{info.engine} on {info.device} in {info.dtype}",
        "against": f"{reference.library}, in float32 on a CPU, one text at a time",
        "texts": f"{found.num_texts}, {found.num_tokens:,} tokens; {longest}",
        "token ids": reference.ids.in_words,
        **({"not verified": reference.not_verified} if reference.not_verified else {}),
        **({"other prompts": "; ".join(others)} if (others := other_prompts(plan.folder)) else {}),
        "cosine": f"minimum {found.min_cosine:.7f}, median {found.median_cosine:.7f}",
        "without mean": f"minimum {found.min_cosine_without_mean:.7f}: of rows without the mean of all",
        "difference": f"at most {found.max_difference:.1e}, where the largest value is {found.max_value:.2g}",
        "limits": f"cosine {cosine} or more, difference {difference:g} of the largest value or less",
        "verdict": _verdict(found, reference),
    }
    yield plan.name
    for label, value in facts.items():
        yield aligned(label, value)


def _verdict(found: Agreement, reference: Reference) -> str:
    if found.passed:
        return f"the same rows{', save for what is not verified' * bool(reference.not_verified)}"
    return "BELOW the limits" if reference.ids.passed else "OTHER token ids"


def _limits(info: ModelInfo) -> tuple[float, float]:
    return _LIMITS.get(info.dtype, _LIMITS_OF_OTHERS)


def _of_our_class(plan: ModelPlan, settings: Settings, asked: VerifyTexts) -> Reference:
    """The rows of a folder whose config.json has words of its own code. No library reads it, so the class that serves
    it does, one text at a time. Raises ModelError.
    """
    alone = replace(
        plan,
        engine="transformers",
        devices=replace(plan.devices, names=("cpu",), gpus=()),
        settings=replace(plan.settings, dtype="float32", quantization="none", max_batch_requests=1),
    )
    rows, _ = _our_rows(alone, settings, asked)
    return Reference(
        rows,
        f"{plan.folder.architecture} of the transformers engine",
        references.ids_of(plan, asked),
        not_verified="config.json has words of the model's own code, which no library reads without running it; that "
        "they mean what they are taken for, and the pooling, is held by Embedline's tests alone (docs/models.md)",
    )


def _our_rows(plan: ModelPlan, settings: Settings, asked: VerifyTexts) -> tuple[_Array, ModelInfo]:
    """One row a text, or a token; sparse ones spread over the vocabulary, embeddings scaled as they go out."""
    options = _options(plan, settings)
    engine = registry.load(plan.engine, name=plan.name, reason=plan.reason, options=options)
    try:
        output = _OUTPUTS[plan.folder.task]
        parts = []
        for batch in _batches(engine, asked.tokens, output):
            results = compute(engine, batch)
            if isinstance(results, EngineError):
                raise ModelError(f"the {engine.info.engine} engine fails on a text: {results}")
            parts.append(results[output])
    finally:
        engine.close()
    if output is OutputKind.SPARSE:
        parts = [Rows(_spread(rows, plan.folder.vocab_size)) for rows in parts]
    rows = np.concatenate([rows.values for rows in parts])
    if asked.is_compared is not None:
        rows = rows[asked.is_compared]
    if output is OutputKind.POOLED and engine.info.normalize:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
    return rows, engine.info


def _batches(engine: Engine, tokens: TokenizedTexts, output: OutputKind) -> Iterator[Batch]:
    limits, offsets = engine.limits, tokens.offsets
    start = 0
    while start < len(tokens.truncated):
        stop = start + 1
        while (
            stop < len(tokens.truncated)
            and stop - start < limits.max_num_seqs
            and offsets[stop + 1] - offsets[start] <= limits.max_num_tokens
        ):
            stop += 1
        own = tokens.between(start, stop)
        parts: dict[str, Any] = {part.field: values for part, values in own.parts.items()}
        yield Batch(engine.info.name, output, own.token_ids, own.offsets, **parts)
        start = stop


def _spread(rows: Rows, vocab_size: int) -> _Array:
    """Sparse rows as dense ones [N, V]."""
    assert rows.offsets is not None
    spread = np.zeros((len(rows.offsets) - 1, vocab_size), np.float32)
    numbers = np.repeat(np.arange(len(spread)), np.diff(rows.offsets))
    spread[numbers, rows.values[:, 0].astype(np.int64)] = rows.values[:, 1]
    return spread


def _compare(rows: _Array, reference: Reference, info: ModelInfo, tokens: TokenizedTexts) -> Agreement:
    expected = reference.rows
    if rows.shape != expected.shape:
        raise ModelError(f"rows here are {rows.shape}, the library's {expected.shape}: other tokens, or another head")
    difference = float(np.abs(rows - expected).max())
    largest = float(np.abs(expected).max())
    cosines = _cosines(rows, expected) if rows.shape[1] > 1 else _cosines(rows.T, expected.T)
    cosine, relative = _limits(info)
    dtype = info.dtype if info.dtype in TOLERANCE else "fp8"  # int8 is measured when it is made
    without_mean = agreement(rows, expected, dtype=dtype)
    return Agreement(
        num_texts=len(tokens.truncated),
        num_tokens=len(tokens.token_ids),
        min_cosine=float(cosines.min()),
        median_cosine=float(np.median(cosines)),
        min_cosine_without_mean=without_mean.min_cosine,
        max_difference=difference,
        max_value=largest,
        passed=bool(
            reference.ids.passed
            and cosines.min() >= cosine
            and difference <= relative * largest
            and is_near(without_mean, dtype=dtype)
        ),
    )


def _cosines(rows: _Array, expected: _Array) -> NDArray[np.float64]:
    """The cosines in float64, in which a cosine of 1 is one."""
    ours, theirs = rows.astype(np.float64), expected.astype(np.float64)
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    found: NDArray[np.float64] = (ours * theirs).sum(axis=1) / np.maximum(lengths, 1e-30)
    found[lengths == 0] = (ours == theirs).all(axis=1)[lengths == 0]  # rows of nothing but zeros are alike
    return found

"""A model as it will be served, decided and checked before any process is started.

It also says what an engine process gets: the options to load the model, and the interpreter that it runs under.
"""

import dataclasses
import functools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedline.progress import Progress
from engine import registry
from engine.machine import cuda_driver, devices
from engine.machine.cuda_driver import Cuda
from engine.machine.devices import Devices, Work
from engine.messages import LoadOptions
from engine.model import known_prompts, model_folder, quantization
from engine.model.identity import Identity, identify
from engine.model.model_folder import ModelFolder, check_special_tokens
from engine.model.quantization import Stored
from engine.offer import Offer, ServingTarget, offer_of
from engine.types import ModelError, OutputKind
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import MAX_PROCESSES, Settings
from server.settings.tei_flags import check_dense_path
from server.supervisor.model_files import Int8Ranges, find_files, find_int8_ranges, ranges_of_whole_numbers
from tokenizer_pool import special_tokens
from tokenizer_pool.messages import Truncation
from wire.dataclass_json import to_json
from wire.tokenizer_files import TokenizerError, has_chat_template, read_config

if TYPE_CHECKING:
    from server.supervisor.adapters import Lora

_PROBE_SECONDS = 10.0  # in which it says so: imports nothing that takes time, but may be read from a cold disk
_TENSORRT_LLM = registry.ENGINES[registry.TENSORRT_LLM].packages[0]
_PROBE = f"""
import importlib.util, json, sys
names = ("numpy", "{_TENSORRT_LLM}")
print(json.dumps({{"version": sys.version_info[:2], "has": [n for n in names if importlib.util.find_spec(n)]}}))
"""
_NO_CUDA_IN_TORCH = "+cpu"  # how such a build ends its version


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """One model. Its place in the list of all is its index on the wire and on the shared page."""

    name: str
    settings: ModelSettings
    engine: str
    reason: str  # why this engine
    devices: Devices
    folder: ModelFolder
    source: str  # "local folder", "hub", …, and what was converted
    revision: str  # commit, "" where not known
    default_prompt: str  # put before each text
    special_tokens: str  # what is put around each text, and why, in words
    truncation: Truncation  # of texts that are too long
    identity: Identity  # by which rows that are stored somewhere can be told apart
    int8_ranges: Int8Ranges | None = None  # for rows as int8
    stored: Stored | None = None  # how the weights are; None = plain
    has_chat_template: bool = False
    loras: "tuple[Lora, ...]" = ()  # adapters that are kept apart, in the order of their numbers

    @property
    def prompts(self) -> Mapping[str, str]:
        """The model's own prompts by name."""
        return self.folder.prompts

    @property
    def adapters(self) -> tuple[str, ...]:
        """The tasks for which the model has adapters."""
        return self.folder.adapters

    @property
    def default_adapter(self) -> str | None:
        """The adapter for texts without a task: the one of the default prompt's name, or the model's own, if any."""
        name = self.settings.default_prompt_name or self.folder.default_prompt_name
        is_named = self.settings.default_prompt is None and name in self.folder.adapters
        return name if is_named else self.folder.default_adapter


def plan_models(settings: Settings, *, progress: Progress | None = None) -> list[ModelPlan]:
    """The plans of all models; `progress` as in `plan_model`. Raises SettingsError and ModelError with one line."""
    cuda = functools.cache(functools.partial(find_cuda, settings))
    plans = [plan_model(model, settings, cuda=cuda, progress=progress) for model in settings.models]
    num_engines = sum(len(plan.devices.names) for plan in plans)
    if num_engines > MAX_PROCESSES:
        raise SettingsError(f"--devices: all models together may have at most {MAX_PROCESSES} engines")
    if (settings.batch_managers or 1) > num_engines:
        raise SettingsError("--batch-managers must not be more than there are engines")
    return plans


def plan_model(
    model: ModelSettings, settings: Settings, *, cuda: Callable[[], Cuda], progress: Progress | None = None
) -> ModelPlan:
    """Find its devices, its engine and the model itself, and read its folder. `cuda` is asked only where it matters.

    Weights that are pickles are converted, with `progress`; without it NotConvertedError says that a start would do so.
    Raises SettingsError and ModelError with one line.
    """
    chosen = _devices(model, cuda)
    engine, reason = _engine(model, settings, chosen)
    resolved = find_files(model, settings, needs_weights=engine != registry.FAKE, progress=progress)
    folder = read_folder(resolved.path, model, engine)
    check_dense_path(model.dense_path, folder)
    if engine != registry.FAKE:
        check_special_tokens(folder)
    if folder.is_static and engine != registry.FAKE:
        engine, reason = _static_engine(model)
        chosen = devices.choose(registry.CPU, Work(engine, model.dtype, model.quantization), Cuda())
    if model.lora and (refused := registry.why_no_loras(engine)):
        raise ModelError(refused)
    _check_compiled(model, engine, chosen)
    around, truncation, has_template = _of_tokenizer(folder)
    shortened = _shortened(folder, model.max_input_length)
    if engine != registry.AUTO:
        _ask(engine, shortened, model, chosen)
    default_prompt, ranges = _default_prompt(model, folder), _int8_ranges(model, folder, engine)
    identity = identify(
        shortened,
        flags=_flags_of_rows(shortened, default_prompt, ranges),
        stand_in=f"fake {model.fake_dim}" if engine == registry.FAKE else "",
    )
    return ModelPlan(
        name=model.name,
        settings=model,
        engine=engine,
        reason=reason,
        devices=chosen,
        folder=shortened,
        source=resolved.source,
        revision=resolved.revision,
        default_prompt=default_prompt,
        special_tokens=around,
        truncation=truncation if model.auto_truncate else Truncation.NONE,
        int8_ranges=ranges,
        has_chat_template=has_template,
        stored=None if engine in (registry.FAKE, registry.STATIC) else _stored(folder, engine, chosen),
        identity=identity,
        loras=_loras(model, shortened, identity, default_prompt=default_prompt, engine=engine),
    )


def _loras(model: ModelSettings, folder: ModelFolder, base: Identity, **known: Any) -> "tuple[Lora, ...]":
    """See find_loras. Raises SettingsError and ModelError."""
    if not model.lora:
        return ()
    from server.supervisor.adapters import find_loras  # few models have any

    return find_loras(model, folder, base, **known)


def _engine(model: ModelSettings, settings: Settings, chosen: Devices) -> tuple[str, str]:
    """The engine's name, and why it was chosen. Raises SettingsError and ModelError."""
    if model.engine == registry.AUTO and has_tensorrt_llm_alone(settings.engine_python):
        if chosen.kind != registry.CUDA:
            raise ModelError(
                "--engine auto: --engine-python has TensorRT-LLM, which needs a GPU, and packages of its own, which "
                f"no other engine is known to work with; the cpu image serves without one ({chosen.reason})"
            )
        return registry.TENSORRT_LLM, (
            "--engine auto: --engine-python has TensorRT-LLM, and packages of its own, which no other engine is known "
            "to work with; the cuda image has the others"
        )
    return registry.choose(model.engine, quantization=model.quantization, kind=chosen.kind)


def _static_engine(model: ModelSettings) -> tuple[str, str]:
    """The only one that looks rows up and no more, and why. Raises ModelError where another is asked for."""
    if model.engine not in (registry.AUTO, registry.STATIC):
        raise ModelError(f"--engine {model.engine} does not serve static embeddings; {registry.STATIC} does")
    if model.devices not in (registry.AUTO, registry.CPU):
        raise ModelError("--devices must be cpu for static embeddings, which are looked up and not computed")
    return registry.STATIC, f"--engine {model.engine}: the model is a table of static embeddings"


def _devices(model: ModelSettings, cuda: Callable[[], Cuda]) -> Devices:
    work = Work(model.engine, model.dtype, model.quantization)
    return devices.choose(model.devices, work, cuda() if devices.needs_driver(model.devices, work) else Cuda())


def _stored(folder: ModelFolder, engine: str, chosen: Devices) -> Stored | None:
    """How quantized weights are stored. Raises ModelError where no engine that may be taken can read the weights."""
    engines = registry.tried_by_auto(chosen.kind) if engine == registry.AUTO else (engine,)
    if engine != registry.AUTO and offer_of(engine).is_asked_first:  # it has said what it can't read
        return quantization.describe(folder.weights_folder)
    return quantization.check(
        folder.weights_folder, reads_fp8=any(registry.ENGINES[name].reads_fp8 for name in engines)
    )


def _ask(engine: str, folder: ModelFolder, model: ModelSettings, chosen: Devices) -> None:
    """Asks what the engine would say, before anything is started. Raises ModelError."""
    offer = offer_of(engine)
    if offer.is_asked_first:
        target = ServingTarget(flags=model, folder=folder, cuda=Cuda(chosen.gpus))
        for reason in offer.check(registry.ENGINES[engine], target, folder):
            raise ModelError(reason)


def _check_compiled(model: ModelSettings, engine: str, chosen: Devices) -> None:
    """Raises SettingsError where --compiled-model would have no effect, or names no folder."""
    if model.compiled_model is None:
        return
    if engine not in (registry.AUTO, registry.OPENVINO) or chosen.kind != registry.CPU:
        where = f"{engine} on {', '.join(chosen.names)}"
        raise SettingsError(f"--compiled-model is for the openvino engine on the CPU, and this model gets {where}")
    if not Path(model.compiled_model).expanduser().is_dir():
        raise SettingsError(f"--compiled-model is not a folder: {model.compiled_model}")


def _of_tokenizer(folder: ModelFolder) -> tuple[str, Truncation, bool]:
    """The special tokens in words, which end of a text that is too long is cut off, and whether there is a chat
    template. Raises ModelError."""
    files = folder.path / folder.tokenizer_folder
    if folder.is_static:
        return "none: static embeddings", Truncation.RIGHT, has_chat_template(files)
    try:
        config = read_config(files / "tokenizer_config.json")
        around = special_tokens.in_words(files)
    except TokenizerError as error:
        raise ModelError(str(error)) from None
    side = config.get("truncation_side", "right")
    if side not in ("left", "right"):
        raise ModelError("truncation_side in tokenizer_config.json is neither left nor right")
    return around, Truncation.LEFT if side == "left" else Truncation.RIGHT, has_chat_template(files)


def _shortened(folder: ModelFolder, max_input_length: int | None) -> ModelFolder:
    if max_input_length is None:
        return folder
    if max_input_length > folder.max_seqlen:
        raise SettingsError(f"--max-input-length is more than the model's limit of {folder.max_seqlen} tokens")
    return dataclasses.replace(folder, max_seqlen=max_input_length, max_seqlen_source="--max-input-length")


def _default_prompt(model: ModelSettings, folder: ModelFolder) -> str:
    """The flags outrank the model's own default."""
    if model.default_prompt is not None:
        return model.default_prompt
    name = model.default_prompt_name
    if name is None:
        return folder.default_prompt
    if name not in folder.prompts:
        known = ", ".join(sorted(folder.prompts)) or "none"
        raise ModelError(f"--default-prompt-name is not one of the model's prompts ({known})")
    return folder.prompts[name]


def _int8_ranges(model: ModelSettings, folder: ModelFolder, engine: str) -> Int8Ranges | None:
    if OutputKind.POOLED in folder.outputs:
        whole = model.fake_dim if engine == registry.FAKE else folder.dimensions
        shown = min(whole, folder.truncate_dim or whole)
        found = find_int8_ranges(model.int8_ranges, folder.path, shown)
        return ranges_of_whole_numbers(shown) if folder.rounds and found is None else found
    if model.int8_ranges is not None:
        raise SettingsError("--int8-ranges is of embeddings, and the model gives none")
    return None


def _flags_of_rows(folder: ModelFolder, default_prompt: str, ranges: Int8Ranges | None) -> dict[str, str]:
    """The flags that change rows beside the model's folder, for its identity."""
    around = None if folder.is_static else special_tokens.ends(folder.weights_folder)
    return {
        "default_prompt": default_prompt,
        "special_tokens": str(around or ""),
        "int8_ranges": ranges.numbers.hex() if ranges else "",
    }


def read_folder(path: Path, model: ModelSettings, engine: str) -> ModelFolder:
    """The model's folder as this engine takes it. Raises ModelError."""
    offer = offer_of(engine) if engine in registry.ENGINES else Offer()
    folder = model_folder.read(
        path,
        pooling=model.pooling,
        task=model.task,
        template=model.template,
        needs_weights=engine != registry.FAKE,
        known_classes=offer.known_classes(model),
        trusted_keys=model.trust_config_key,
    )
    return known_prompts.with_known(folder, model.model_id)


def find_cuda(settings: Settings) -> Cuda:
    """The GPUs that engines can use: none where the torch that they would use is missing, or built without CUDA."""
    found = cuda_driver.find()
    if not found.gpus or settings.engine_python != sys.executable:  # of another interpreter's torch nothing is known
        return found
    torch = _torch_version()
    if torch and not torch.endswith(_NO_CUDA_IN_TORCH):
        return found
    what = f"{torch} is built without CUDA" if torch else "is not installed: pip install 'embedline[server]'"
    return Cuda(why_none=f"there is a GPU, but torch {what}")


def _torch_version() -> str:
    """The version of torch that is installed here, without importing it; "" where it is not."""
    import importlib.metadata  # which takes long itself, and only a machine with a GPU asks

    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def engine_options(
    model: ModelPlan,
    device: str,
    *,
    cache_dir: str | None,
    num_threads: int,
    max_cache_bytes: int | None = None,
    memory_share: float = 1.0,
) -> LoadOptions:
    """The options of an engine; see LoadOptions for what is not of the model's settings."""
    settings, folder = model.settings, model.folder
    engines = registry.tried_by_auto(model.devices.kind) if model.engine == registry.AUTO else (model.engine,)
    return LoadOptions(
        device=device,
        path="" if model.engine == registry.FAKE else str(folder.path),
        dtype=settings.dtype,
        quantization=settings.quantization,
        pooling=settings.pooling,
        task=settings.task,
        trusted_keys=settings.trust_config_key,
        template=settings.template,
        max_seqlen=folder.max_seqlen,
        max_num_tokens=settings.max_batch_tokens,
        max_num_seqs=settings.max_batch_requests,
        num_threads=num_threads,
        cache_dir=cache_dir,
        max_cache_bytes=max_cache_bytes,
        memory_share=memory_share,
        gpu=next((gpu for gpu in model.devices.gpus if gpu.device == device), None),
        loras=tuple((lora.name, str(lora.path)) for lora in model.loras),
        own={name: to_json(offer_of(name).options.of(settings, folder)) for name in engines},
    )


def check_engine_python(python: str) -> None:
    """Raises SettingsError where engine processes can't run under it. Found later, it would look like a crash."""
    if python != sys.executable:
        _packages(python)


def has_tensorrt_llm_alone(python: str) -> bool:
    """Whether it is an interpreter with TensorRT-LLM and pins of its own, as in the tensorrt-llm image.

    Other engines may not work there: they need other versions. Raises SettingsError.
    """
    return python != sys.executable and _TENSORRT_LLM in _packages(python)


@functools.cache
def _packages(python: str) -> frozenset[str]:
    """The probe's packages that the engine's Python can import. Raises SettingsError."""
    try:
        ended = subprocess.run(
            [python, "-P", "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except OSError as error:
        raise SettingsError(f"--engine-python can't be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise SettingsError(f"--engine-python did not answer within {_PROBE_SECONDS:g} seconds") from None
    try:
        found = json.loads(ended.stdout)
        is_fit = tuple(found["version"]) >= (3, 11) and "numpy" in found["has"]
    except (ValueError, KeyError, TypeError):
        is_fit = False
    if ended.returncode or not is_fit:
        raise SettingsError("--engine-python must be Python 3.11 or newer with numpy")
    return frozenset(found["has"])

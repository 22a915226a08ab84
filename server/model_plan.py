"""A model as it will be served, decided before any process is started: what can be wrong with it is found here."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from engine import model_folder, registry
from engine.model_folder import ModelFolder
from engine.model_source import resolve
from engine.types import ModelError
from server.flag import SettingsError
from server.model_settings import ModelSettings
from server.settings import Settings
from tokenizer_pool.messages import Truncation

_FAKE = "fake"
_CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """One model. Its place in the list of all is its index on the wire and on the shared page."""

    name: str
    settings: ModelSettings
    engine: str
    reason: str  # why this engine
    folder: ModelFolder
    source: str  # "local folder", "hub", …
    revision: str  # commit, "" where not known
    default_prompt: str  # put before each text
    truncation: Truncation  # of texts that are too long


def plan_models(settings: Settings) -> list[ModelPlan]:
    """All of them, in their order. Raises SettingsError and ModelError with one line."""
    return [plan_model(model, settings) for model in settings.models]


def plan_model(model: ModelSettings, settings: Settings) -> ModelPlan:
    """Find the model, read its folder, choose its engine. Raises SettingsError and ModelError with one line."""
    engine, reason = registry.choose(model.engine, quantization=model.quantization)
    _check_devices(model, engine)
    cache = settings.huggingface_hub_cache
    resolved = resolve(
        model.model_id, model.revision, cache_dir=Path(cache) if cache else None, token=settings.hf_token
    )
    folder = model_folder.read(resolved.path, pooling=model.pooling, needs_weights=engine != _FAKE)
    return ModelPlan(
        name=model.name,
        settings=model,
        engine=engine,
        reason=reason,
        folder=_shortened(folder, model.max_input_length),
        source=resolved.source,
        revision=resolved.revision,
        default_prompt=_default_prompt(model, folder),
        truncation=Truncation.RIGHT if model.auto_truncate else Truncation.NONE,
    )


def _check_devices(model: ModelSettings, engine: str) -> None:
    """The fake engine computes anywhere, the others on the CPU; found here, it costs no import of theirs."""
    foreign = [device for device in model.device_list if device != _CPU]
    if foreign and engine != _FAKE:
        raise SettingsError(f"--devices {foreign[0]}: engines compute on the device {_CPU} only")


def _shortened(folder: ModelFolder, max_input_length: int | None) -> ModelFolder:
    if max_input_length is None:
        return folder
    if max_input_length > folder.max_seqlen:
        raise SettingsError(f"--max-input-length is more than the {folder.max_seqlen} tokens that the model takes")
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

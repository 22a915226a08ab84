"""A model as it will be served, decided before any process is started: what can be wrong with it is found here."""

from dataclasses import dataclass
from pathlib import Path

from engine import model_folder, registry
from engine.model_folder import ModelFolder
from engine.model_source import resolve
from engine.types import ModelError
from server.settings import Settings
from tokenizer_pool.messages import Truncation


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """One model. Its place in the list of all is its index on the wire and on the shared page."""

    name: str
    engine: str
    reason: str  # why this engine
    folder: ModelFolder
    source: str  # "local folder", "hub", …
    revision: str  # commit, "" where not known
    default_prompt: str  # put before each text
    truncation: Truncation  # of texts that are too long


def plan_model(settings: Settings) -> ModelPlan:
    """Find the model, read its folder, choose its engine. Raises ModelError with one line."""
    engine, reason = registry.choose(settings.engine)
    cache = settings.huggingface_hub_cache
    resolved = resolve(
        settings.model_id, settings.revision, cache_dir=Path(cache) if cache else None, token=settings.hf_token
    )
    folder = model_folder.read(resolved.path, pooling=settings.pooling, needs_weights=engine != "fake")
    return ModelPlan(
        name=settings.served_model_name or settings.model_id,
        engine=engine,
        reason=reason,
        folder=folder,
        source=resolved.source,
        revision=resolved.revision,
        default_prompt=_default_prompt(settings, folder),
        truncation=Truncation.RIGHT if settings.auto_truncate else Truncation.NONE,
    )


def _default_prompt(settings: Settings, folder: ModelFolder) -> str:
    """The flags outrank the model's own default."""
    if settings.default_prompt is not None:
        return settings.default_prompt
    name = settings.default_prompt_name
    if name is None:
        return folder.default_prompt
    if name not in folder.prompts:
        known = ", ".join(sorted(folder.prompts)) or "none"
        raise ModelError(f"--default-prompt-name is not one of the model's prompts ({known})")
    return folder.prompts[name]

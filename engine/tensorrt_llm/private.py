"""Every private name of tensorrt_llm that we use, wherever a version has it.

tests/engine/tensorrt_llm/contract lists what they promise.

Two generations of paths are known: attention moved with 1.3's last candidates (upstream's PR 17968).
"""

import importlib
from dataclasses import dataclass
from typing import Any

from engine.types import ModelError

_MODELS = "tensorrt_llm._torch.models"
_UTILS = (f"{_MODELS}.modeling_utils",)
_MAPPERS = (f"{_MODELS}.checkpoints.hf.weight_mapper",)
_MASKS = (  # new, old
    "tensorrt_llm._torch.attention.backends.interface",
    "tensorrt_llm._torch.attention_backend.interface",
)


@dataclass(frozen=True, slots=True)
class Registry:
    """The parts of which a class outside of the library is made and made known to it."""

    base: Any  # DecoderModelForCausalLM: makes and loads weights, quantized ones too
    mapper: Any  # HfWeightMapper: from a file's names to a module's
    register_model: Any  # decorators, by the name in config.architectures[0] …
    register_mapper: Any  # … and by ("HF", that name)


def registry() -> Registry:
    """The registry of the installed version. Raises ModelError where it has none."""
    return Registry(
        base=_named(_UTILS, "DecoderModelForCausalLM"),
        mapper=_named(_MAPPERS, "HfWeightMapper"),
        register_model=_named(_UTILS, "register_auto_model"),
        register_mapper=_named(_UTILS, "register_mapper"),
    )


def backbone(module: str, name: str) -> Any:
    """A class that takes a ModelConfig; its forward gives the normed rows of all tokens [T, D]. Raises ModelError."""
    return _named((f"{_MODELS}.{module}",), name)


def full_mask() -> Any:
    """PredefinedAttentionMask.FULL. Raises ModelError."""
    return _named(_MASKS, "PredefinedAttentionMask").FULL


@dataclass(frozen=True, slots=True)
class LibraryLimits:
    """The limits that the library checks a batch against; upstream's own server reads them in the same place."""

    max_batch_size: int  # sequences
    max_num_tokens: int
    max_seq_len: int


def limits_of(llm: Any) -> LibraryLimits | None:
    """The library's limits; None where this version keeps them somewhere else."""
    model_engine = getattr(getattr(llm, "_encoder_executor", None), "model_engine", None)
    found = [getattr(model_engine, name, None) for name in ("batch_size", "max_num_tokens", "max_seq_len")]
    sizes = [size for size in found if isinstance(size, int)]
    return LibraryLimits(*sizes) if len(sizes) == len(found) else None


def _named(modules: tuple[str, ...], name: str) -> Any:
    """The first that is there. What such a module itself lacks is not mistaken for its absence."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise
        except AttributeError:
            continue
    raise ModelError(f"this tensorrt_llm has no {name} in {' or '.join(modules)}; take the tensorrt-llm image")

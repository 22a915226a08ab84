"""Loads a transformers model from a local folder: safetensors only, no code of the folder, no network."""

from collections.abc import Iterable
from typing import Any

import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from engine.machine.failures import one_line
from engine.model import quantization
from engine.model.model_folder import ModelFolder
from engine.model.tasks import AnswerScore, SequenceScores, TokenScores, TransformersHead, VocabularyWeights
from engine.model.unread_weights import check_read
from engine.transformers import models
from engine.transformers.configuration import quiet, read_config
from engine.types import ModelError

# Parts that token rows do not need, so a file may lack them. Scores of a sequence can need the pooler.
_UNUSED_PARTS = frozenset(("pooler", "contact_head"))
_UNUSED_PARTS_OF_SEQUENCE_SCORES = frozenset(("contact_head",))

# The library's class for each head. Other heads are ours and need the bare transformer only.
_CLASSES: dict[type[TransformersHead], tuple[type, str]] = {
    SequenceScores: (AutoModelForSequenceClassification, "sequence classification"),
    TokenScores: (AutoModelForTokenClassification, "token classification"),
    AnswerScore: (AutoModelForCausalLM, "generation"),
    VocabularyWeights: (AutoModelForMaskedLM, "masked language modelling"),
}


def load_model(folder: ModelFolder, *, dtype: torch.dtype) -> PreTrainedModel:
    """The model in the library's class for the folder's heads, or the bare transformer; on the CPU, in inference mode.

    `.base_model` is the bare transformer in it, or the model itself. Raises ModelError if it can't be loaded or
    weights that it needs are missing.
    """
    quantization.check(folder.weights_folder, reads_fp8=False)
    model: PreTrainedModel
    try:
        with quiet():
            config = _load_config(folder)
            model, found = _class_for(folder, config).from_pretrained(
                folder.weights_folder,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # _check_shapes names them
            )
    except ModelError:
        raise
    except Exception as error:  # transformers has no exception class for the many ways in which a folder can be wrong
        raise ModelError(f"transformers can't load {folder.weights_folder}: {one_line(error)}") from error
    _check_shapes(folder, found["mismatched_keys"])
    _check_complete(folder, found["missing_keys"])
    _check_read(folder, model, found["unexpected_keys"])
    assert not model.training
    model.requires_grad_(False)
    return model


def _class_for(folder: ModelFolder, config: PretrainedConfig) -> Any:
    own = models.find(folder.architecture)
    if own is not None:
        return own.class_for(folder)
    for head in folder.heads:
        if isinstance(head, TransformersHead):
            chosen, purpose = _CLASSES[type(head)]
            if type(config) not in chosen._model_mapping:  # type: ignore[attr-defined]
                raise ModelError(f"transformers has no {folder.architecture!r} model for {purpose}")
            return chosen
    return AutoModel


def _check_shapes(folder: ModelFolder, mismatched: Iterable[tuple[str, Iterable[int], Iterable[int]]]) -> None:
    for name, stored, wanted in sorted(mismatched):
        raise ModelError(
            f"the weight {name!r} in {folder.weights_folder} has the shape {list(stored)}, and config.json asks for "
            f"{list(wanted)}"
        )


def _check_read(folder: ModelFolder, model: PreTrainedModel, unexpected_keys: Iterable[str]) -> None:
    """Raises ModelError for a weight inside the model that its class does not have."""
    parts = {name for part in (model, model.base_model) for name, _ in part.named_children()}
    prefix = f"{model.base_model_prefix}."
    unread = [key.removeprefix(prefix) for key in unexpected_keys]
    check_read(unread, parts, folder=folder.weights_folder, architecture=folder.architecture)


def _check_complete(folder: ModelFolder, missing_keys: Iterable[str]) -> None:
    is_scored = any(isinstance(head, SequenceScores) for head in folder.heads)
    unused = _UNUSED_PARTS_OF_SEQUENCE_SCORES if is_scored else _UNUSED_PARTS
    missing = sorted(key for key in missing_keys if not unused.intersection(key.split(".")))
    if missing:
        raise ModelError(
            f"the weights in {folder.weights_folder} are not those of the architecture {folder.architecture!r}: "
            f"{missing[0]} and {len(missing) - 1} others are missing"
        )


def _load_config(folder: ModelFolder) -> PretrainedConfig:
    config = read_config(folder)
    if getattr(config, "quantization_config", None) is not None:
        raise ModelError(
            "the weights are plain, but config.json has a quantization_config, which transformers would apply; "
            "remove that entry, or take --engine fused"
        )
    # The file may ask for kernels from the hub or other outputs; these settings are ours.
    config._attn_implementation = None
    config.use_cache = False
    config.return_dict = True
    config.output_attentions = False
    config.output_hidden_states = False
    return config

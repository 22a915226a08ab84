"""Loads a transformers model from a local folder: safetensors only, no code of the folder, no network."""

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
from engine.transformers import models
from engine.transformers.configuration import quiet, read_config
from engine.transformers.headers import check_found, check_headers
from engine.types import ModelError

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
            model_class = _class_for(folder, config)
            check_headers(folder, model_class, config)
            model, found = model_class.from_pretrained(
                folder.weights_folder,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # check_found names them
            )
    except ModelError:
        raise
    except Exception as error:  # transformers has no exception class for the many ways in which a folder can be wrong
        file = folder.weights_folder / "config.json"
        raise ModelError(f"transformers can't load the model of {file}: {one_line(error)}") from error
    check_found(folder, model, found, {})  # as before, but for what could not be told without the numbers
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


def _load_config(folder: ModelFolder) -> PretrainedConfig:
    config = read_config(folder)
    if getattr(config, "quantization_config", None) is not None:
        raise ModelError(
            "the weights are plain, but config.json has a quantization_config, which transformers would apply; "
            "remove that entry, or take --engine fused"
        )
    # The file may ask for kernels from the hub, other weights or other outputs; these settings are ours.
    config.transformers_weights = None
    config._attn_implementation = None
    config.use_cache = False
    config.return_dict = True
    config.output_attentions = False
    config.output_hidden_states = False
    return config

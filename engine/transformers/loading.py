"""Loads a transformers model from a local folder: safetensors only, no code of the folder, no network.

Before any weight is read, the weights that the files hold are compared with those that the model's class reads. For
that the library's own loading is run on the meta device, where tensors have names, dtypes and shapes but no numbers. So
its renaming, its conversions and its tied weights count as they do when the weights are read.
"""

import copy
import inspect
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
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
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    convert_and_load_state_dict_in_model,
    rename_source_key,
)
from transformers.modeling_utils import LoadStateDictConfig

from engine.machine.failures import one_line
from engine.model import quantization
from engine.model.model_folder import ModelFolder
from engine.model.tasks import AnswerScore, SequenceScores, TokenScores, TransformersHead, VocabularyWeights
from engine.model.weights import StoredTensor, check_read, tensors_in
from engine.store.tensor_file import on_meta
from engine.transformers.configuration import OWN, quiet, read_config
from engine.types import ModelError

logger = logging.getLogger("embedline.engine")

# The library's class for each head. Other heads are ours and need the bare transformer only.
_CLASSES: dict[type[TransformersHead], tuple[type, str]] = {
    SequenceScores: (AutoModelForSequenceClassification, "sequence classification"),
    TokenScores: (AutoModelForTokenClassification, "token classification"),
    AnswerScore: (AutoModelForCausalLM, "generation"),
    VocabularyWeights: (AutoModelForMaskedLM, "masked language modelling"),
}

_META = torch.device("meta")
_NEEDS_NUMBERS = "meta tensor"  # in the messages of operations that can't run on that device

Sources = Mapping[str, list[StoredTensor]]  # the model's name of a weight, or of the first -> what it is made of


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
    if load_adapters := getattr(model, "load_adapters", None) if folder.adapter_files else None:
        load_adapters(folder)
    assert not model.training
    model.requires_grad_(False)
    return model


def _class_for(folder: ModelFolder, config: PretrainedConfig) -> Any:
    if own := OWN.get(folder.architecture):
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


def takes(model: PreTrainedModel, argument: str) -> bool:
    """Whether its forward has an argument of this name."""
    return argument in inspect.signature(model.forward).parameters


def takes_token_types(model: PreTrainedModel) -> bool:
    """A model without a table of token types, such as GPT-2, would take their zeros for token 0."""
    return takes(model, "token_type_ids") and bool(getattr(model.config, "type_vocab_size", 0))


def check_headers(folder: ModelFolder, model_class: Any, config: PretrainedConfig) -> None:
    """Raises ModelError as `check_found` does, and for a weight whose conversion fails or whose numbers are integers.

    What the library can't do without the numbers is left to its loading, and to `check_found` after it.
    """
    stored = tensors_in(folder.weights_folder)
    try:
        model, info, sources = _read(model_class, config, stored)
    except ModelError:
        raise
    except Exception as error:  # models and their conversions raise anything; the library's loading tells it better
        logger.info("the headers of %s can't be compared beforehand: %s", folder.weights_folder, one_line(error))
        return
    _check_conversion(info.conversion_errors, sources)
    if not info.conversion_errors:
        check_found(folder, model, info.to_dict(), sources)


def check_found(folder: ModelFolder, model: PreTrainedModel, found: Mapping[str, Any], sources: Sources) -> None:
    """Raises ModelError for a weight of another shape, one that is missing, and one inside the model that it lacks.

    found: what `from_pretrained` gives as its `output_loading_info`.
    """
    _check_shapes(folder, found["mismatched_keys"], sources)
    _check_complete(folder, found["missing_keys"])
    _check_read(folder, model, found["unexpected_keys"], sources)


def _read(
    model_class: Any, config: PretrainedConfig, stored: Mapping[str, StoredTensor]
) -> tuple[PreTrainedModel, Any, Sources]:
    """The model on the meta device, the library's report of reading its weights, and what they are made of."""
    config = copy.deepcopy(config)
    with _META:
        is_automatic = hasattr(model_class, "from_config")
        model = model_class.from_config(config) if is_automatic else model_class._from_config(config)
    mapping: list[Any] = get_model_conversion_mapping(model)
    sources = _sources(model, mapping, stored)
    info, _ = convert_and_load_state_dict_in_model(
        model,
        {name: on_meta(tensor) for name, tensor in stored.items()},
        LoadStateDictConfig(device_map={"": _META}, weight_mapping=mapping),
    )
    # what from_pretrained does next
    model.mark_tied_weights_as_initialized(info)
    model.tie_weights(missing_keys=info.missing_keys, recompute_mapping=False)
    model._adjust_missing_and_unexpected_keys(info)
    return model, info, sources


def _sources(model: PreTrainedModel, mapping: Iterable[Any], stored: Mapping[str, StoredTensor]) -> Sources:
    """What each weight is made of. Raises ModelError where two tensors become one, or integers one of another dtype."""
    expected = model.state_dict()
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    sources: dict[str, list[StoredTensor]] = {}
    for name, tensor in stored.items():
        renamed, converted = rename_source_key(name, renamings, converters, model.base_model_prefix, expected)
        target = name if renamed not in expected and name in expected else renamed
        sources.setdefault(target, []).append(tensor)
        if target not in expected:
            continue
        if len(sources[target]) > 1 and converted is None:
            first = sources[target][0]
            raise ModelError(f"the weights {first} and {tensor} are both read as {target!r}; leave out one of them")
        if expected[target].is_floating_point() and not on_meta(tensor).is_floating_point():
            raise ModelError(
                f"the weight {tensor} is stored as {tensor.dtype}, and nothing describes its scale; take the model's "
                "plain weights"
            )
    return sources


def _check_conversion(failures: Mapping[str, str], sources: Sources) -> None:
    """failures: the model's name of a weight that can't be made -> the library's report."""
    for name, report in sorted(failures.items()):
        if _NEEDS_NUMBERS not in report:
            reason = report.rpartition("\nError")[0].strip().rpartition("\n")[2]
            raise ModelError(
                f"transformers can't make the weight {name!r} of {_of(sources.get(name, []))}: {reason}; check "
                "config.json, or fetch the model's files again"
            )


def _of(tensors: list[StoredTensor]) -> str:
    """Names the one whose shape the fewest others have."""
    if not tensors:
        return "others"
    counts = Counter(tensor.shape for tensor in tensors)
    odd = min(tensors, key=lambda tensor: counts[tensor.shape])
    others = f", and {len(tensors) - 1} others" if len(tensors) > 1 else ""
    return f"{odd} of the shape {list(odd.shape)}{others}"


def _check_shapes(
    folder: ModelFolder, mismatched: Iterable[tuple[str, Iterable[int], Iterable[int]]], sources: Sources
) -> None:
    for name, found, wanted in sorted(mismatched):
        made_of = sources.get(name, [])
        where = f"{name!r} in {folder.weights_folder}"
        if made_of:
            is_as_stored = made_of[0].shape == tuple(found)
            where = str(made_of[0]) if is_as_stored else f"{name!r}, made of {_of(made_of)},"
        raise ModelError(
            f"the weight {where} has the shape {list(found)}, and config.json asks for {list(wanted)}; check "
            "config.json, or fetch the model's files again"
        )


def _check_complete(folder: ModelFolder, missing_keys: Iterable[str]) -> None:
    # Parts that token rows do not need, so a file may lack them. Scores of a sequence can need the pooler.
    is_scored = any(isinstance(head, SequenceScores) for head in folder.heads)
    unused = {"contact_head"} if is_scored else {"contact_head", "pooler"}
    missing = sorted(key for key in missing_keys if not unused.intersection(key.split(".")))
    if missing:
        which = f"{missing[0]} is" if len(missing) == 1 else f"{missing[0]} and {len(missing) - 1} others are"
        raise ModelError(
            f"the weights in {folder.weights_folder} are not those of the architecture {folder.architecture!r}: "
            f"{which} missing; check config.json, or fetch the model's files again"
        )


def _check_read(folder: ModelFolder, model: PreTrainedModel, unexpected_keys: Iterable[str], sources: Sources) -> None:
    """Raises ModelError for a weight inside the model that its class does not have."""
    parts = {name for part in (model, model.base_model) for name, _ in part.named_children()}
    prefix = f"{model.base_model_prefix}."
    unread = {
        key.removeprefix(prefix): sources[key][0] if key in sources else f"{key!r} in {folder.weights_folder}"
        for key in unexpected_keys
    }
    check_read(unread, parts, architecture=folder.architecture)

"""The architectures that have a class of ours, and its backbone in the library. Others are refused here."""

from dataclasses import dataclass

from engine.model.coverage import ARCHITECTURES
from engine.types import ModelError

_MAX_NAME = 60  # characters of an architecture's name in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture."""

    model_type: str  # of config.json
    module: str  # the library's module with the backbone
    backbone: str  # the class that gives a row for each token
    architecture: str  # the name under which our class is registered
    has_float16: bool = True  # False = one of its kernels takes only bfloat16
    is_encoder: bool = False  # BERT's layers: every token attends to all, no quantized layers


FAMILIES = {
    family.model_type: family
    for family in (
        Family(model_type="llama", module="modeling_llama", backbone="LlamaModel", architecture="EmbedlineLlama"),
        Family(
            model_type="mistral", module="modeling_mistral", backbone="MistralModel", architecture="EmbedlineMistral"
        ),
        Family(model_type="qwen2", module="modeling_qwen", backbone="QwenModel", architecture="EmbedlineQwen2"),
        Family(
            model_type="qwen3",
            module="modeling_qwen3",
            backbone="Qwen3Model",
            architecture="EmbedlineQwen3",
            has_float16=False,  # fused_qk_norm_rope: the norms of queries and keys with their angles
        ),
        *(
            Family(
                model_type=model_type,
                module="modeling_bert",
                backbone="BertModel",
                architecture=architecture,
                is_encoder=True,
            )
            for model_type, architecture in (("roberta", "EmbedlineRoberta"), ("xlm-roberta", "EmbedlineXlmRoberta"))
        ),
    )
}
_FUSED = frozenset(one.model_type for one in ARCHITECTURES if one.is_fused)
_KNOWN = frozenset(one.model_type for one in ARCHITECTURES)


def family_of(model_type: str) -> Family:
    """The family of an architecture. Raises ModelError if it has none, naming the engine and image that serve it."""
    family = FAMILIES.get(model_type)
    if family is not None:
        return family
    engine = "fused" if model_type in _FUSED else "transformers"
    does = "serves" if model_type in _KNOWN else "may serve"
    raise ModelError(
        f"the tensorrt-llm engine has no class for the architecture {model_type[:_MAX_NAME]!r}, only for "
        f"{', '.join(FAMILIES)}; --engine {engine}, in the cuda image, {does} it"
    )


def refusal(what: str) -> ModelError:
    """The error. what: the rest of a sentence that starts with "the tensorrt-llm engine "."""
    return ModelError(
        f"the tensorrt-llm engine {what}; --engine fused or transformers, in the cuda image, may serve it"
    )


def unreadable(what: str) -> ModelError:
    """The error for weights that are stored in a way that the engine does not read."""
    return ModelError(
        f"the tensorrt-llm engine {what}; take the model's plain weights, or for FP8 --engine fused, in the cuda image"
    )

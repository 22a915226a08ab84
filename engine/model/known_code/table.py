"""All code that is known, and which of it a config.json names. A row for each family."""

from collections.abc import Sequence

from engine.model.json_files import Json, object_in
from engine.model.known_code.eurobert import EUROBERT
from engine.model.known_code.gritlm import GRITLM
from engine.model.known_code.gte import NEW, SNOWFLAKE, SNOWFLAKE_UNNAMED
from engine.model.known_code.jina import (
    JINA_ABSOLUTE,
    JINA_ADAPTERS,
    JINA_BERT,
    JINA_BERT_FLASH,
    JINA_BERT_QK,
    JINA_ROTARY,
)
from engine.model.known_code.known_code import KnownCode
from engine.model.known_code.nomic import NOMIC_BERT, NOMIC_MOE
from engine.model.known_code.nvidia import LLAMA_BIDIREC, NV_EMBED
from engine.model.known_code.qwen2 import QWEN2_EMBEDDING, QWEN2_KALM, QWEN2_QZHOU, QWEN2_REWARD

# The first that fits is taken.
KNOWN = (
    *(NOMIC_MOE, NOMIC_BERT, NEW, SNOWFLAKE, SNOWFLAKE_UNNAMED, JINA_BERT, JINA_BERT_QK, JINA_BERT_FLASH),
    *(JINA_ROTARY, JINA_ABSOLUTE, JINA_ADAPTERS, EUROBERT, QWEN2_EMBEDDING, QWEN2_KALM),
    *(QWEN2_QZHOU, QWEN2_REWARD, LLAMA_BIDIREC, NV_EMBED, GRITLM),
)

_TOKENIZERS = ("AutoTokenizer", "AutoProcessor", "AutoImageProcessor", "AutoFeatureExtractor")  # not the layers' code


def named(config: Json) -> tuple[str, ...]:
    """The code that auto_map of config.json names for the model, such as modeling.NewModel."""
    codes = object_in(config, "auto_map", "config.json").items()
    return tuple(str(code) for purpose, code in codes if purpose not in _TOKENIZERS and code)


def find(config: Json) -> KnownCode | None:
    """The first known code that has all that config.json names, or whose keys it has; None if there is none."""
    names, model_type = named(config), str(config.get("model_type") or "")
    fitting = [code for code in KNOWN if not code.model_types or model_type in code.model_types]
    fitting = [code for code in fitting if code.chosen_by is None or code.chosen_by(config)]
    if names:
        return next((code for code in fitting if all(map(code.has, names))), None)
    return next((code for code in fitting if code.signs & config.keys()), None)


def first_unknown(names: Sequence[str]) -> str:
    """The first of these names of code that is in none of the known files; else the first of all."""
    return next((name for name in names if not any(code.has(name) for code in KNOWN)), names[0])


def instead_of(model_type: str) -> str:
    """What can be served instead of models of this model_type, in words; mostly empty."""
    return next((code.instead for code in KNOWN if model_type in code.model_types and code.instead), "")

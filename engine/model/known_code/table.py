"""All code that is known, and which of it a config.json names. The table has a row for each family.

Families of a few lines are described here. EuroBERT's code became transformers' own: its repositories still name the
files that it came from. GritLM is Mistral and Mixtral that see both ways when they embed.
"""

from collections.abc import Sequence

from engine.model.json_files import Json, object_in
from engine.model.known_code.bge import COST_WISE, LAYERWISE
from engine.model.known_code.giga import GIGA_EXPERTS, GIGA_LATENT, GIGA_QWEN3
from engine.model.known_code.gte import NEW, SNOWFLAKE, SNOWFLAKE_UNNAMED
from engine.model.known_code.jina import (
    JINA_ABSOLUTE,
    JINA_ADAPTERS,
    JINA_BERT,
    JINA_BERT_FLASH,
    JINA_BERT_QK,
    JINA_ROTARY,
)
from engine.model.known_code.jina_v5 import JINA_V5_NANO, JINA_V5_SMALL
from engine.model.known_code.kalm import KALM_RERANKER
from engine.model.known_code.known_code import KnownCode
from engine.model.known_code.liquid import LFM2_BIDIREC
from engine.model.known_code.nomic import NOMIC_BERT, NOMIC_MOE
from engine.model.known_code.nvidia import LLAMA_BIDIREC, MISTRAL3_RERANKER, NV_EMBED
from engine.model.known_code.qwen2 import QWEN2_EMBEDDING, QWEN2_KALM, QWEN2_QZHOU, QWEN2_REWARD
from engine.model.known_code.qwen3 import PPLX, VOYAGE

_TOKENIZERS = ("AutoTokenizer", "AutoProcessor", "AutoImageProcessor", "AutoFeatureExtractor")  # not the layers' code
_NAMES = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
EUROBERT = KnownCode(
    source="huggingface/transformers, src/transformers/models/eurobert, converted from modeling_eurobert.py",
    model_types=frozenset(("eurobert",)),
    modules=frozenset(("modeling_eurobert", "configuration_eurobert")),
    repositories=frozenset(f"EuroBERT/EuroBERT-{size}" for size in ("210m", "610m", "2.1B")),
    architecture="eurobert",
    classes={f"EuroBert{name}": f"EuroBert{name}" for name in _NAMES},
    same=frozenset(
        (
            *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
            *("num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps"),
            *("rope_theta", "rope_scaling", "rope_parameters", "attention_bias", "mlp_bias", "classifier_pooling"),
        )
    ),
    renamed={"clf_pooling": "classifier_pooling"},
    without_effect=frozenset(
        (
            *("hidden_dropout", "mask_token", "mask_token_id", "pad_token", "pretraining_tp"),
            *("bos_token", "eos_token", "task_names"),  # of jina-embeddings-v5 with a task's adapter merged in
        )
    ),
)
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta"),
)


def _both_ways(_: Json, config: Json) -> Json:
    """GritLM.encode calls the code with is_causal=False, and its mask leaves out padding alone, not far tokens."""
    return {**config, "is_causal": False, "sliding_window": None}


GRITLM = KnownCode(
    source="ContextualAI/gritlm, scripts/modeling_mistral_gritlm.py and gritlm/gritlm.py",
    model_types=frozenset(("mistral",)),
    modules=frozenset(("modeling_gritlm7b",)),
    architecture="mistral",
    classes={"MistralForCausalLM": "MistralForCausalLM"},
    same=frozenset(_SIZES),
    without_effect=frozenset(("sliding_window",)),
    pools_text_alone=True,
    translate=_both_ways,
)
# Its code calls Qwen3's layers with a chat template, and gives the sigmoid of a fifth of the raw score of "Yes".
ZERANK = KnownCode(
    source="zeroentropy/zerank-1-small, modeling_zeranker.py, as three public projects describe it",
    model_types=frozenset(("qwen3",)),
    modules=frozenset(("modeling_zeranker",)),
    repositories=frozenset(f"zeroentropy/zerank-{size}" for size in ("1", "1-small", "1-reranker", "1-small-reranker")),
    architecture="qwen3",
    classes={"Qwen3ForCausalLM": "Qwen3ForCausalLM"},
    same=frozenset((*_SIZES, "attention_bias", "layer_types", "rope_scaling", "rope_parameters")),
    fixed={"use_sliding_window": (False,)},
    without_effect=frozenset(("use_sliding_window", "sliding_window", "max_window_layers")),
)
# The first that fits is taken.
KNOWN = (
    *(NOMIC_MOE, NOMIC_BERT, NEW, SNOWFLAKE, SNOWFLAKE_UNNAMED, JINA_BERT, JINA_BERT_QK, JINA_BERT_FLASH),
    *(JINA_ROTARY, JINA_ABSOLUTE, JINA_ADAPTERS, EUROBERT, QWEN2_EMBEDDING, QWEN2_KALM),
    *(QWEN2_QZHOU, QWEN2_REWARD, LLAMA_BIDIREC, NV_EMBED, GRITLM),
    LFM2_BIDIREC,
    *(GIGA_QWEN3, GIGA_EXPERTS, GIGA_LATENT, MISTRAL3_RERANKER),
    *(VOYAGE, PPLX, JINA_V5_SMALL, JINA_V5_NANO),
    *(COST_WISE, LAYERWISE, KALM_RERANKER, ZERANK),
)


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
    """The models that can be served instead of models of this model_type, in words; mostly empty."""
    return next((code.instead for code in KNOWN if model_type in code.model_types and code.instead), "")

"""NVIDIA's bidirectional Llama and Mistral: llama-nemotron-embed and -rerank, NV-Embed; and Nemotron-3.5-Rerank."""

from engine.model.json_files import Json, number_in, object_in
from engine.model.known_code.known_code import KnownCode
from engine.types import ModelError

_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling"),
)
_RERANKER = "LlamaBidirectionalForSequenceClassification"


def _llama(raw: Json, config: Json) -> Json:
    """transformers' own Llama gives the rows of tokens; the reranker's head is a module of ours."""
    config = {**config, "is_causal": False}
    if _RERANKER not in config["architectures"]:
        return {**config, "model_type": "llama"}
    temperature = raw["temperature"]
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not temperature > 0:
        raise ModelError("'temperature' in config.json is not a number above 0, and the scores are divided by it")
    return {**config, "score_temperature": float(temperature)}  # transformers drops `temperature`


LLAMA_BIDIREC = KnownCode(
    source="nvidia/llama-nemotron-embed-1b-v2 and -rerank-1b-v2, llama_bidirectional_model.py",
    model_types=frozenset(("llama_bidirec",)),
    modules=frozenset(("llama_bidirectional_model",)),
    signs=frozenset(("model_type",)),  # nobody else has it
    architecture="llama_bidirec",
    is_ours=True,
    layers="llama",
    classes={"LlamaBidirectionalModel": "LlamaModel", _RERANKER: _RERANKER},
    same=frozenset((*_SIZES, "attention_bias", "mlp_bias", "rope_parameters")),
    fixed={"pooling": ("avg",), "is_causal": (False,)},
    # to embeddings the temperature is nothing; see _llama
    without_effect=frozenset(("pretraining_tp", "temperature")),
    defaults={"pooling": "avg", "temperature": 1.0},
    translate=_llama,
)

# LatentAttentionConfig's defaults. NV-Embed-v2's file says none of these numbers.
_LATENT = {
    **{"num_latents_value": 512, "num_cross_heads": 8, "cross_dim_head": 4096},
    **{"hidden_dim": 4096, "latent_dim": 4096},
}
_OTHERS = frozenset(("model_type", "output_normalize"))


def _nv_embed(raw: Json, config: Json) -> Json:
    given = object_in(raw, "latent_attention_config")
    for key in sorted(given.keys() - _LATENT.keys() - _OTHERS):
        raise ModelError(f"{key!r} in latent_attention_config of config.json is no key of NV-Embed's code")
    if given.get("output_normalize", True) is not True:
        raise ModelError("'output_normalize' in latent_attention_config of config.json is not true, as in NV-Embed")
    latent = {key: number_in(given, key) if key in given else usual for key, usual in _LATENT.items()}
    for key in ("hidden_dim", "latent_dim"):
        if latent[key] != config["hidden_size"]:
            raise ModelError(f"{key!r} in config.json is {latent[key]}: such rows can't be added to the transformer's")
    return {
        **config,
        "is_causal": False,
        "sliding_window": None,  # the code's mask leaves out padding alone
        "num_latents": latent["num_latents_value"],
        "num_cross_heads": latent["num_cross_heads"],
        "cross_dim_head": latent["cross_dim_head"],
    }


NV_EMBED = KnownCode(
    source="nvidia/NV-Embed-v2, modeling_nvembed.py and configuration_nvembed.py",
    model_types=frozenset(("nvembed",)),
    modules=frozenset(("modeling_nvembed", "configuration_nvembed")),
    signs=frozenset(("model_type",)),
    architecture="nvembed",
    is_ours=True,
    layers="mistral",
    classes={"NVEmbedModel": "NVEmbedModel"},
    same=frozenset((*_SIZES, "rope_parameters")),
    fixed={"padding_side": ("right",), "is_mask_instruction": (True,)},  # the pooling leaves out the instruction
    without_effect=frozenset(
        ("text_config", "latent_attention_config", "sliding_window", "mask_type", "add_eos", "add_pad_token")
    ),
    pools_text_alone=True,
    translate=_nv_embed,
)

MISTRAL3_RERANKER = KnownCode(
    source="NVIDIA-NeMo/Automodel, reranker_export.py",
    model_types=frozenset(("mistral3",)),
    modules=frozenset(("model",)),
    chosen_by=lambda config: "Mistral3ForSequenceClassification" in (config.get("architectures") or ()),
    instead="of NVIDIA's rerankers llama-nemotron-rerank-1b-v2 is served",
)

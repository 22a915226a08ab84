"""Embedding models on decoders that came in 2026, and NVIDIA's of late 2025. None of their files was read.

Sizes are those of the models that they were made of, as far as the numbers of parameters that mteb has agree.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.parity.repositories import vocabularies
from tests.parity.repositories.facts import Ids, Refused, Repository
from tests.parity.repositories.folders import HIDDEN_SIZE, INNER_SIZE, NUM_HEADS, NUM_POSITIONS
from tests.parity.repositories.forms import embedding, plain
from tests.parity.repositories.models.decoders import QWEN3, SEARCH
from tests.parity.repositories.models.families import published
from tests.parity.repositories.own_code import llama_bidirec
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_FULL, _SLIDING = "full_attention", "sliding_attention"
_SMALL: dict[str, Any] = {  # in the library's words, of repositories whose files have others
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": INNER_SIZE,
    "num_hidden_layers": 2,
    "num_attention_heads": NUM_HEADS,
    "max_position_embeddings": NUM_POSITIONS,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": vocabularies.SIZE,
    "initializer_range": 0.2,
    "is_causal": False,
}

# --- Ministral 3 that sees both ways. The file is the class's, with the sizes of Ministral-3-8B

_NEMOTRON: dict[str, Any] = {
    "architectures": ["Ministral3Model"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "is_causal": False,
    "max_position_embeddings": 262144,
    "model_type": "ministral3",
    "num_attention_heads": 32,
    "num_hidden_layers": 34,
    "num_key_value_heads": 8,
    "pad_token_id": 11,
    "pooling": "avg",
    "rms_norm_eps": 1e-05,
    "rope_parameters": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 16.0,
        "llama_4_scaling_beta": 0.1,
        "max_position_embeddings": 262144,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 16384,
        "rope_theta": 1000000.0,
        "rope_type": "yarn",
        "type": "yarn",
    },
    "sliding_window": None,
    "tie_word_embeddings": True,
    "transformers_version": "5.2.0",
    "use_cache": False,
    "vocab_size": 131072,
}
_NEMOTRON_1B = {"hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 24, "num_hidden_layers": 16}
_PASSAGES = {"query": "query: ", "document": "passage: "}
_NEMOTRON_3 = tuple(
    embedding(
        f"nvidia/Nemotron-3-Embed-{size}-BF16",
        {**_NEMOTRON, **sizes},
        "mean",
        words=Words.MISTRAL3,
        length=32768,
        rows=(Source.AUTOMODEL, Source.MLX_NEMOTRON, Source.MTEB),
        prompts=_PASSAGES,
    )
    for size, sizes in (("1B", _NEMOTRON_1B), ("8B", {}))
)

_FORWARD = {"method": "forward", "method_output_name": "last_hidden_state"}
_STRUCTURED = {**_FORWARD, "format": "structured"}
_WITH_IMAGES: dict[str, Any] = {
    "architectures": ["Mistral3Model"],
    "dtype": "bfloat16",
    "image_token_index": 10,
    "model_type": "mistral3",
    "multimodal_projector_bias": False,
    "pooling": "avg",
    "projector_hidden_act": "gelu",
    "spatial_merge_size": 2,
    "tie_word_embeddings": True,
    "transformers_version": "5.23.0",
    "vision_config": {
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "image_size": 1540,
        "intermediate_size": 4096,
        "model_type": "pixtral",
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": 14,
    },
    "vision_feature_layer": -1,
}
_NOT_FOUND = (
    "its files were not found; this is the form in which NVIDIA-NeMo/Automodel saves such models "
    "(`components/models/ministral_bidirectional`)"
)


def _with_images(size: str, sizes: Mapping[str, Any]) -> Repository:
    made = embedding(
        f"nvidia/Nemotron-3.5-Embed-{size}",
        {**_WITH_IMAGES, "text_config": {**_NEMOTRON, **sizes}},
        "mean",
        words=Words.MISTRAL3,
        length=32768,
        rows=(),
        doubt=_NOT_FOUND,
        prompts=_PASSAGES,
    )
    module = {
        "modality_config": {"text": _FORWARD, "image": _FORWARD, "message": _STRUCTURED},
        "module_output_name": "token_embeddings",
        "max_seq_length": 32768,
    }
    return replace(made, files={**made.files, "sentence_bert_config.json": module})


_NEMOTRON_35 = (
    _with_images("1B", _NEMOTRON_1B),
    _with_images("8B", {}),
    plain(
        "nvidia/Nemotron-3.5-Rerank-8B",
        {
            **_WITH_IMAGES,
            "architectures": ["Mistral3ForSequenceClassification"],
            "auto_map": {"AutoModelForSequenceClassification": "model.Mistral3ForSequenceClassification"},
            "is_causal": False,
            "score_temperature": 1.0,
            "text_config": _NEMOTRON,
        },
        Refused(
            says="llama-nemotron-rerank-1b-v2",
            reason="it scores by the mean of its rows and a Dense module, in its own code (as Automodel saves it)",
            instead="`nvidia/llama-nemotron-rerank-1b-v2`",
        ),
        words=Words.MISTRAL3,
        rows=(),
        model_max_length=32768,
    ),
)

# --- Llama that sees both ways: the code of llama-nemotron-embed-1b-v2

_QUESTION = "Instruct: Given a question, retrieve passages that answer the question\nQuery: "
_LLAMA_8B = {
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_scaling": {**llama_bidirec.CONFIG["rope_scaling"], "factor": 8.0, "original_max_position_embeddings": 8192},
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
_LLAMA = embedding(
    "nvidia/llama-embed-nemotron-8b",
    {**llama_bidirec.CONFIG, **_LLAMA_8B},
    "mean",
    words=Words.LLAMA3,
    length=32768,
    rows=(Source.NEURON_LLAMA, Source.VLLM_CLASSES, Source.MTEB),
    card=(f"query: {_QUESTION}",),
    held_by="tests/parity/repositories/own_code/test_own_code.py",
)

# --- harrier: Gemma 3 and Qwen3, whose repositories have no sentence_bert_config.json

_WEB_SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
_HARRIER_PROMPTS = {
    "web_search_query": _WEB_SEARCH,
    "sts_query": "Instruct: Retrieve semantically similar text\nQuery: ",
    "bitext_query": "Instruct: Retrieve parallel sentences\nQuery: ",
}
_GEMMA3: dict[str, Any] = {
    **published("embeddinggemma-300m"),
    "dtype": "bfloat16",
    "transformers_version": "4.57.6",
    "use_bidirectional_attention": False,
}


def _gemma3(num_layers: int, **sizes: Any) -> dict[str, Any]:
    kinds = [_SLIDING if (number + 1) % 6 else _FULL for number in range(num_layers)]
    return {**_GEMMA3, "num_hidden_layers": num_layers, "layer_types": kinds, **sizes}


_HARRIER_270M = _gemma3(
    18, hidden_size=640, intermediate_size=2048, num_attention_heads=4, max_position_embeddings=32768
)
_HARRIER_27B = _gemma3(
    62,
    hidden_size=5376,
    intermediate_size=21504,
    num_attention_heads=32,
    num_key_value_heads=16,
    head_dim=128,
    max_position_embeddings=131072,
    query_pre_attn_scalar=168,
    rope_scaling={"factor": 8.0, "rope_type": "linear"},
    sliding_window=1024,
    vocab_size=262208,
)
_HARRIER_06B = {
    **QWEN3,
    "architectures": ["Qwen3Model"],
    "layer_types": [_FULL] * 28,
    "transformers_version": "4.57.6",
    "vocab_size": 151936,
}
_GEMMA_ENDS = {"add_bos_token": True, "add_eos_token": True}


def _harrier(size: str, config: Mapping[str, Any], words: Words, **more: Any) -> Repository:
    made = embedding(
        f"microsoft/harrier-oss-v1-{size}",
        config,
        "last",
        words=words,
        length=int(config["max_position_embeddings"]),
        model_max_length=131072,
        prompts=_HARRIER_PROMPTS,
        **more,
    )
    return replace(made, files={key: file for key, file in made.files.items() if key != "sentence_bert_config.json"})


_HARRIER_IDS = Ids(of="harrier-oss-v1-0.6b", first="", last="<|endoftext|>", source=Source.LITERT)
_HARRIER = (
    _harrier(
        "270m",
        _HARRIER_270M,
        Words.GEMMA,
        rows=(Source.HARRIER_CARD, Source.TEI_HARRIER, Source.MTEB),
        flags=_GEMMA_ENDS,
    ),
    _harrier(
        "0.6b",
        _HARRIER_06B,
        Words.QWEN3,
        rows=(Source.HARRIER_CARD, Source.LITERT, Source.MTEB),
        ids=_HARRIER_IDS,
    ),
    _harrier("27b", _HARRIER_27B, Words.GEMMA, rows=(Source.HARRIER_CARD, Source.MTEB), flags=_GEMMA_ENDS),
)

# --- Qwen3, and what was made of Qwen3-Embedding

_4B = {"hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32, "num_hidden_layers": 36}
_8B = {**_4B, "hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False}
_OCTEN = tuple(
    embedding(
        f"Octen/Octen-Embedding-{size}",
        {**QWEN3, **sizes},
        "last",
        words=Words.QWEN3,
        length=32768,
        prompts={"query": SEARCH, "document": " "},
        rows=(Source.OCTEN_NOTES, Source.MTEB),
    )
    for size, sizes in (("0.6B", {}), ("4B", _4B), ("8B", _8B))
)
_F2LLM_QUERY = "Instruct: Given a question, retrieve passages that can help answer the question.\nQuery: "
_F2LLM_SIZES: dict[str, dict[str, Any]] = {
    "80M": {"hidden_size": 320},
    "160M": {"hidden_size": 640},
    "330M": {"hidden_size": 896},
    "0.6B": {},
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144},
    "4B": _4B,
    "8B": _8B,
    "14B": {**_8B, "hidden_size": 5120, "intermediate_size": 17408, "num_attention_heads": 40, "num_hidden_layers": 40},
}
_F2LLM = tuple(
    embedding(
        f"codefuse-ai/F2LLM-v2-{size}",
        {**QWEN3, "architectures": ["Qwen3Model"], "max_position_embeddings": 40960, "vocab_size": 151936, **sizes},
        "last",
        words=Words.QWEN3,
        length=40960,
        prompts={"query": _F2LLM_QUERY, "document": ""},
        rows=(Source.LLAMA_CPP_F2LLM, Source.MTEB),
    )
    for size, sizes in _F2LLM_SIZES.items()
)

# --- OLMo 3, of which mteb says that it sees earlier tokens alone, and takes the last token, an appended one

_OLMO3 = {
    "architectures": ["Olmo3Model"],
    "attention_bias": False,
    "dtype": "bfloat16",
    "eos_token_id": 50279,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "layer_types": [_FULL if (number + 1) % 4 == 0 else _SLIDING for number in range(32)],
    "max_position_embeddings": 65536,
    "model_type": "olmo3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pad_token_id": 1,
    "rms_norm_eps": 1e-06,
    "rope_theta": 500000,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 100278,
}
_OLMO = embedding("petegordon/olmo3-embed-7b", _OLMO3, "last", words=Words.QWEN3, length=512, rows=(Source.MTEB,))

# --- Giga: Qwen3 and DeepSeek-V3 that see both ways

_GIGA_FILE = "modeling_gigarembed"
_GIGA_PROMPTS = {"query": "Instruct: Given a query, retrieve relevant passages\nQuery: ", "document": ""}


def _giga_code(name: str) -> dict[str, Any]:
    files = {"AutoConfig": f"configuration_gigarembed.{name}Config", "AutoModel": f"{_GIGA_FILE}.{name}Model"}
    return {"architectures": [f"{name}Model"], "auto_map": files}


_GIGA_480M = {
    **QWEN3,
    **_giga_code("Qwen3Bidirectional"),
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 64,
    "is_causal": False,
    "layer_types": [_FULL] * 28,
    "max_position_embeddings": 8192,
    "model_type": "qwen3_bidirec",
    "pad_token_id": 2,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}
_GIGA_3B = {"head_dim": 128, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36}
_LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 192}
_EXPERTS = {
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1280,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 4,
    "q_lora_rank": None,
    "routed_scaling_factor": 1.0,
    "topk_group": 1,
}
_GIGA_10B: dict[str, Any] = {
    **_giga_code("DeepseekV3Bidirectional"),
    **_LATENT,
    **_EXPERTS,
    "attention_bias": False,
    "bos_token_id": 1,
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 1536,
    "initializer_range": 0.02,
    "intermediate_size": 8960,
    "is_causal": False,
    "max_position_embeddings": 262144,
    "model_type": "deepseek_v3_bidirec",
    "num_attention_heads": 32,
    "num_hidden_layers": 26,
    "num_key_value_heads": 32,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-06,
    "rope_interleave": True,
    "rope_theta": 100000.0,
    "tie_word_embeddings": False,
    "use_cache": False,
    "vocab_size": 128256,
}
_GIGA_IDS = Ids(of="Giga-Embeddings-instruct-480M-0826", first="<s>", last="</s>", source=Source.LITERT)


def _giga(size: str, config: Mapping[str, Any], library: Mapping[str, Any], *rows: Source, **more: Any) -> Repository:
    return embedding(
        f"ai-sage/Giga-Embeddings-instruct-{size}-0826",
        config,
        "mean",
        words=Words.GIGA,
        length=8192,
        prompts=_GIGA_PROMPTS,
        rows=(Source.GIGA_NOTES, *rows),
        library={**_SMALL, **library},
        **more,
    )


_SMALL_QWEN3 = {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 10}
_SMALL_EXPERTS = {"model_type": "deepseek_v3", "num_key_value_heads": 2, "rope_theta": 100000.0, **_LATENT, **_EXPERTS}
_GIGA = (
    _giga("480M", _GIGA_480M, _SMALL_QWEN3, Source.LITERT, ids=_GIGA_IDS),
    _giga("3B", {**_GIGA_480M, **_GIGA_3B}, _SMALL_QWEN3, Source.SGLANG_GIGA),
    _giga("10B-A1.8B", _GIGA_10B, _SMALL_EXPERTS, Source.VLLM_GIGA),
    plain(
        "ai-sage/Giga-Embeddings-instruct",
        {
            "architectures": ["GigarEmbedModel"],
            "auto_map": {
                "AutoConfig": "configuration_gigarembed.GigarEmbedConfig",
                "AutoModel": f"{_GIGA_FILE}.GigarEmbedModel",
            },
            "latent_attention_config": {"model_type": "latent_attention"},
            "model_type": "gigarembed",
        },
        Refused(
            says="Giga-Embeddings-instruct-480M-0826",
            reason="it pools by latent attention, in its own code",
            instead="`ai-sage/Giga-Embeddings-instruct-480M-0826` or `-3B-0826`",
        ),
        words=Words.GIGA,
        rows=(Source.GIGA_NOTES,),
        model_max_length=4096,
    ),
)

REPOSITORIES = (*_NEMOTRON_3, *_NEMOTRON_35, _LLAMA, *_HARRIER, *_OCTEN, *_F2LLM, _OLMO, *_GIGA)

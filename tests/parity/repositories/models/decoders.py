"""Embedding models on decoders: Qwen3-Embedding, EmbeddingGemma, bge-multilingual-gemma2."""

from typing import Any

from tests.parity.repositories.facts import Ids, Repository
from tests.parity.repositories.forms import embedding
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

# as published of Qwen3-0.6B; length and vocabulary are Qwen3-Embedding's
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.3",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151669,
}
_QWEN3_IDS = Ids(of="Qwen3-Embedding-0.6B", first="", last="<|endoftext|>", source=Source.QWEN3_CARD)
GEMMA_IDS = Ids(
    of="gemma-2",
    text="How are you doing?",
    ids=(2, 2299, 708, 692, 3900, 235336),
    first="<bos>",
    last="",
    source=Source.JS_GEMMA,
)
_4B: dict[str, Any] = {"hidden_size": 2560, "vocab_size": 151665, "max_position_embeddings": 40960}
_8B: dict[str, Any] = {**_4B, "hidden_size": 4096, "tie_word_embeddings": False}
SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
_QWEN3_PROMPTS = {"query": SEARCH, "document": ""}
_GEMMA_PROMPTS = {
    "query": "task: search result | query: ",
    "document": "title: none | text: ",
    "STS": "task: sentence similarity | query: ",
}
_SLIDING, _FULL = "sliding_attention", "full_attention"
_GEMMA: dict[str, Any] = {
    "_sliding_window_pattern": 6,
    "architectures": ["Gemma3TextModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "dtype": "float32",
    "eos_token_id": 1,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "layer_types": [*[_SLIDING] * 5, _FULL] * 4,
    "max_position_embeddings": 2048,
    "model_type": "gemma3_text",
    "num_attention_heads": 3,
    "num_hidden_layers": 24,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "transformers_version": "4.57.0.dev0",
    "use_bidirectional_attention": True,
    "use_cache": True,
    "vocab_size": 262144,
}
_GEMMA2: dict[str, Any] = {
    "architectures": ["Gemma2Model"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": 1,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 3584,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 16,
    "num_hidden_layers": 42,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "torch_dtype": "float32",
    "transformers_version": "4.42.3",
    "use_cache": False,
    "vocab_size": 256002,
}
_IDENTITY = "torch.nn.modules.linear.Identity"

REPOSITORIES: tuple[Repository, ...] = (
    *(
        embedding(
            f"Qwen/Qwen3-Embedding-{size}",
            {**QWEN3, **sizes},
            Words.QWEN3,
            "last",
            length=32768,
            rows=(Source.CARD, Source.MTEB, *sources),
            ids=_QWEN3_IDS,
            prompts=_QWEN3_PROMPTS,
        )
        for size, sizes, sources in (("0.6B", {}, (Source.VLLM_GTE,)), ("4B", _4B, ()), ("8B", _8B, ()))
    ),
    embedding(
        "google/embeddinggemma-300m",
        _GEMMA,
        Words.GEMMA,
        "mean",
        length=2048,
        dense=((3072, False, _IDENTITY), (768, False, _IDENTITY)),
        rows=(Source.CARD, Source.VLLM_GEMMA, Source.FASTEMBED_RS),
        prompts=_GEMMA_PROMPTS,
        flags={"add_bos_token": True, "add_eos_token": True},
    ),
    embedding(
        "BAAI/bge-multilingual-gemma2",
        _GEMMA2,
        Words.GEMMA_FIRST,
        "last",
        length=8192,
        rows=(Source.VLLM_CLASSES, Source.MTEB),
        ids=GEMMA_IDS,
        prompts={"web_search_query": "<instruct>Given a web search query, retrieve relevant passages\n<query>"},
        flags={"add_bos_token": True, "add_eos_token": False},
    ),
)

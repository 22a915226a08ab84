"""Generative rerankers: Qwen3-Reranker, mxbai-rerank-v2, bge-reranker-v2-gemma."""

from typing import Any

from engine.model.tasks import Activation, Task
from tests.parity.repositories.facts import Head, Repository, Served
from tests.parity.repositories.forms import plain
from tests.parity.repositories.models.decoders import GEMMA_IDS, QWEN3
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_GEMMA: dict[str, Any] = {
    "architectures": ["GemmaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "head_dim": 256,
    "hidden_act": "gelu",
    "hidden_activation": None,
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 16384,
    "max_position_embeddings": 8192,
    "model_type": "gemma",
    "num_attention_heads": 8,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
    "transformers_version": "4.38.1",
    "use_cache": True,
    "vocab_size": 256000,
}
# as published of Qwen2.5-0.5B
_QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 24,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "float16",
    "transformers_version": "4.49.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
_QWEN3_SIZES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("0.6B", {}),
    ("4B", {"hidden_size": 2560, "intermediate_size": 9728}),
)


def _answers(length: int) -> Served:
    return Served(task=Task.RERANK, head=Head.ANSWER, size=1, length=length, activation=Activation.SIGMOID)


REPOSITORIES: tuple[Repository, ...] = (
    *(
        plain(
            f"Qwen/Qwen3-Reranker-{size}",
            {**QWEN3, "max_position_embeddings": 40960, **sizes},
            Words.QWEN,
            _answers(40960),
            rows=(Source.VLLM_QWEN3,),
            model_max_length=131072,
            answers=("yes", "no"),
        )
        for size, sizes in _QWEN3_SIZES
    ),
    plain(
        "mixedbread-ai/mxbai-rerank-base-v2",
        _QWEN2,
        Words.QWEN,
        _answers(32768),
        rows=(Source.VLLM_MXBAI,),
        model_max_length=32768,
        answers=("1", "0"),
    ),
    plain(
        "BAAI/bge-reranker-v2-gemma",
        _GEMMA,
        Words.GEMMA_FIRST,
        _answers(8192),
        rows=(Source.VLLM_BGE_GEMMA,),
        ids=GEMMA_IDS,
        model_max_length=8192,
        flags={"add_bos_token": True, "add_eos_token": False},
        answers=("Yes", ""),
    ),
)

"""Generative rerankers: Qwen3-Reranker, mxbai-rerank-v2, bge-reranker-v2-gemma."""

from typing import Any

from engine.model.tasks import Activation, Task
from tests.parity.repositories.configs import published
from tests.parity.repositories.facts import Head, Repository, Served
from tests.parity.repositories.forms import plain
from tests.parity.repositories.models.decoders import GEMMA_IDS, QWEN3
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_GEMMA: dict[str, Any] = published("bge-reranker-v2-gemma")
# as published of Qwen2.5-0.5B
_QWEN2: dict[str, Any] = published("mxbai-rerank-base-v2")
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

"""Repositories with layers of their own, read anew in own_code: Jina's, Nomic's experts, gte.

config.json is theirs, in the real sizes.
"""

from typing import Any

from engine.model.tasks import Task
from tests.parity.repositories.facts import Head, Ids, Repository, Served
from tests.parity.repositories.forms import cross_encoder, embedding, plain
from tests.parity.repositories.models.bert import UNCASED
from tests.parity.repositories.models.multilingual import XLM_R_IDS
from tests.parity.repositories.own_code import gte, jina_bert, jina_roberta, nomic_moe
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_READ = "tests/parity/repositories/own_code/test_own_code.py"
_BASE: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "max_position_embeddings": 8192,
}
_SMALL: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
}
_LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
}
_XLM_R = {"max_position_embeddings": 8194, "vocab_size": 250002}
_ENGLISH = {"vocab_size": 30528, "type_vocab_size": 0}
_TWICE = {"rope_scaling": {"factor": 2.0, "type": "ntk"}}
_CODE_IDS = Ids(of="jina-embeddings-v2-base-code", first="<s>", last="</s>", source=Source.JS_ROBERTA)

JINA: tuple[Repository, ...] = (
    embedding(
        "jinaai/jina-embeddings-v2-base-en",
        {**jina_bert.CONFIG, **_BASE, "vocab_size": 30528},
        Words.UNCASED,
        "mean",
        length=8192,
        is_normalized=False,
        rows=(Source.JINA_BERT, Source.FASTEMBED_RS),
        ids=UNCASED,
        held_by=_READ,
    ),
    embedding(
        "jinaai/jina-embeddings-v2-small-en",
        {**jina_bert.CONFIG, **_BASE, **_SMALL, "vocab_size": 30528},
        Words.UNCASED,
        "mean",
        length=8192,
        is_normalized=False,
        rows=(Source.JINA_BERT, Source.TEI, Source.FASTEMBED),
        ids=UNCASED,
        held_by=_READ,
    ),
    embedding(
        "jinaai/jina-embeddings-v2-base-code",
        {**jina_bert.QK_CONFIG, **_BASE, "vocab_size": 61056},
        Words.ROBERTA,
        "mean",
        length=8192,
        is_normalized=False,
        rows=(Source.TEI, Source.FASTEMBED_RS),
        ids=_CODE_IDS,
        held_by=_READ,
    ),
    embedding(
        "jinaai/jina-embeddings-v3",
        {**jina_roberta.V3, **_LARGE, **_XLM_R},
        Words.UNIGRAM,
        "mean",
        length=8192,
        rows=(Source.JINA_ROBERTA, Source.MTEB),
        ids=XLM_R_IDS,
        held_by=_READ,
        first_module="custom_st.Transformer",
    ),
    cross_encoder(
        "jinaai/jina-reranker-v2-base-multilingual",
        {**jina_roberta.RERANKER, **_BASE, "max_position_embeddings": 1026, "vocab_size": 250002},
        Words.UNIGRAM,
        length=1024,
        rows=(Source.JINA_ROBERTA, Source.ST_SCORES),
        ids=XLM_R_IDS,
        held_by=_READ,
    ),
    plain(
        "jinaai/jina-colbert-v2",
        {**jina_roberta.COLBERT, **_LARGE, **_XLM_R},
        Words.JINA_COLBERT,
        Served(task=Task.LATE_INTERACTION, head=Head.COLBERT, size=128, length=8192),
        rows=(Source.JINA_ROBERTA, Source.VLLM_CLASSES),
        model_max_length=8192,
        held_by=_READ,
        others={
            "artifact.metadata": {
                "query_token_id": "[QueryMarker]",
                "doc_token_id": "[DocumentMarker]",
                "dim": 128,
                "query_maxlen": 32,
                "doc_maxlen": 300,
                "attend_to_mask_tokens": True,
            }
        },
    ),
    embedding(
        "nomic-ai/nomic-embed-text-v2-moe",
        {
            **nomic_moe.CONFIG,
            **{"n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 12, "num_experts": 8},
            **{"n_positions": 2048, "max_trained_positions": 2048, "vocab_size": 250048},
        },
        Words.UNIGRAM,
        "mean",
        length=512,
        rows=(Source.TEI, Source.VLLM_NOMIC, Source.MTEB),
        ids=XLM_R_IDS,
        held_by=_READ,
    ),
)
GTE: tuple[Repository, ...] = tuple(
    embedding(
        name,
        {**gte.CONFIG, **_BASE, **config},
        words,
        pooling,
        length=length,
        is_normalized=is_normalized,
        rows=rows,
        ids=UNCASED if words is Words.UNCASED else XLM_R_IDS,
        dense=dense,
        held_by=_READ,
    )
    for name, words, pooling, length, is_normalized, rows, dense, config in (
        (
            "Alibaba-NLP/gte-multilingual-base",
            Words.UNIGRAM,
            "cls",
            8192,
            True,
            (Source.VLLM_GTE, Source.CARD, Source.MTEB),
            (),
            {"vocab_size": 250048},
        ),
        (
            "Alibaba-NLP/gte-base-en-v1.5",
            Words.UNCASED,
            "cls",
            8192,
            False,
            (Source.TEI, Source.FASTEMBED_RS, Source.MTEB),
            (),
            {
                "vocab_size": 30528,
                "type_vocab_size": 0,
                "rope_theta": 500000,
                "rope_scaling": {"factor": 2.0, "type": "ntk"},
            },
        ),
        (
            "Alibaba-NLP/gte-large-en-v1.5",
            Words.UNCASED,
            "cls",
            8192,
            False,
            (Source.FASTEMBED_RS,),
            (),
            {
                **_LARGE,
                "vocab_size": 30528,
                "type_vocab_size": 0,
                "rope_theta": 160000,
                "rope_scaling": {"factor": 2.0, "type": "ntk"},
            },
        ),
        (
            "NovaSearch/stella_en_400M_v5",
            Words.UNCASED,
            "mean",
            512,
            False,
            (Source.CARD, Source.TEI),
            ((1024, True, "torch.nn.modules.linear.Identity"),),
            {
                **_LARGE,
                "vocab_size": 30528,
                "type_vocab_size": 2,
                "rope_theta": 160000,
                "rope_scaling": {"factor": 2.0, "type": "ntk"},
            },
        ),
        (
            "Snowflake/snowflake-arctic-embed-m-v2.0",
            Words.UNIGRAM,
            "cls",
            8192,
            True,
            (Source.VLLM_ARCTIC, Source.TEI, Source.MTEB),
            (),
            {**gte.ARCTIC, "vocab_size": 250048},
        ),
    )
)
GTE_RERANKER = cross_encoder(
    "Alibaba-NLP/gte-multilingual-reranker-base",
    {**gte.CONFIG, **_BASE, "architectures": ["NewForSequenceClassification"], "vocab_size": 250048},
    Words.UNIGRAM,
    length=8192,
    rows=(Source.VLLM_GTE, Source.ST_SCORES, Source.TEI),
    ids=XLM_R_IDS,
    held_by=_READ,
)
REPOSITORIES: tuple[Repository, ...] = (*JINA, *GTE, GTE_RERANKER)

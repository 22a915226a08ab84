"""Repositories with layers of their own, read anew in own_code: Jina's, Nomic's experts, gte.

config.json is theirs, in the real sizes.
"""

from functools import partial
from typing import Any

from engine.model.tasks import Task
from tests.parity.repositories.facts import Head, Ids, Repository, Served
from tests.parity.repositories.forms import IDENTITY, cross_encoder, embedding, plain
from tests.parity.repositories.models.bert import UNCASED
from tests.parity.repositories.models.multilingual import XLM_R_IDS
from tests.parity.repositories.own_code import gte, jina_bert, jina_roberta, nomic_moe
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_READ = "tests/parity/repositories/own_code/test_own_code.py"


def _sizes(size: int, num_heads: int, num_layers: int) -> dict[str, Any]:
    return {
        **{"hidden_size": size, "intermediate_size": 4 * size},
        **{"num_attention_heads": num_heads, "num_hidden_layers": num_layers},
    }


_BASE: dict[str, Any] = {**_sizes(768, 12, 12), "max_position_embeddings": 8192}
_SMALL, _LARGE = _sizes(512, 8, 4), _sizes(1024, 16, 24)
_XLM_R = {"max_position_embeddings": 8194, "vocab_size": 250002}
_GTE: dict[str, Any] = {**gte.CONFIG, **_BASE, "vocab_size": 250048}
_TWICE: dict[str, Any] = {"vocab_size": 30528, "rope_scaling": {"factor": 2.0, "type": "ntk"}}
_CODE_IDS = Ids(of="jina-embeddings-v2-base-code", first="<s>", last="</s>", source=Source.JS_ROBERTA)

_v2 = partial(
    embedding, words=Words.UNCASED, ids=UNCASED, pooling="mean", length=8192, is_normalized=False, held_by=_READ
)
_unigram = partial(embedding, words=Words.UNIGRAM, ids=XLM_R_IDS, held_by=_READ)
_reranker = partial(cross_encoder, words=Words.UNIGRAM, ids=XLM_R_IDS, held_by=_READ)
_gte = partial(embedding, words=Words.UNCASED, ids=UNCASED, is_normalized=False, held_by=_READ)

JINA: tuple[Repository, ...] = (
    _v2(
        "jinaai/jina-embeddings-v2-base-en",
        {**jina_bert.CONFIG, **_BASE, "vocab_size": 30528},
        rows=(Source.JINA_BERT, Source.FASTEMBED_RS),
    ),
    _v2(
        "jinaai/jina-embeddings-v2-small-en",
        {**jina_bert.CONFIG, **_BASE, **_SMALL, "vocab_size": 30528},
        rows=(Source.JINA_BERT, Source.TEI, Source.FASTEMBED),
    ),
    _v2(
        "jinaai/jina-embeddings-v2-base-code",
        {**jina_bert.QK_CONFIG, **_BASE, "vocab_size": 61056},
        words=Words.ROBERTA,
        rows=(Source.TEI, Source.FASTEMBED_RS),
        ids=_CODE_IDS,
    ),
    _unigram(
        "jinaai/jina-embeddings-v3",
        {**jina_roberta.V3, **_LARGE, **_XLM_R},
        "mean",
        length=8192,
        rows=(Source.JINA_ROBERTA, Source.MTEB),
        first_module="custom_st.Transformer",
    ),
    _reranker(
        "jinaai/jina-reranker-v2-base-multilingual",
        {**jina_roberta.RERANKER, **_BASE, "max_position_embeddings": 1026, "vocab_size": 250002},
        length=1024,
        rows=(Source.JINA_ROBERTA, Source.ST_SCORES),
    ),
    plain(
        "jinaai/jina-colbert-v2",
        {**jina_roberta.COLBERT, **_LARGE, **_XLM_R},
        Served(task=Task.LATE_INTERACTION, head=Head.COLBERT, size=128, length=8192),
        words=Words.JINA_COLBERT,
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
    _unigram(
        "nomic-ai/nomic-embed-text-v2-moe",
        {
            **nomic_moe.CONFIG,
            **{"n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 12, "num_experts": 8},
            **{"n_positions": 2048, "max_trained_positions": 2048, "vocab_size": 250048},
        },
        "mean",
        length=512,
        rows=(Source.TEI, Source.VLLM_NOMIC, Source.MTEB),
    ),
)
GTE: tuple[Repository, ...] = (
    _unigram(
        "Alibaba-NLP/gte-multilingual-base",
        _GTE,
        "cls",
        length=8192,
        rows=(Source.VLLM_GTE, Source.CARD, Source.MTEB),
    ),
    _gte(
        "Alibaba-NLP/gte-base-en-v1.5",
        {**_GTE, **_TWICE, "type_vocab_size": 0, "rope_theta": 500000},
        "cls",
        length=8192,
        rows=(Source.TEI, Source.FASTEMBED_RS, Source.MTEB),
    ),
    _gte(
        "Alibaba-NLP/gte-large-en-v1.5",
        {**_GTE, **_LARGE, **_TWICE, "type_vocab_size": 0, "rope_theta": 160000},
        "cls",
        length=8192,
        rows=(Source.FASTEMBED_RS,),
    ),
    _gte(
        "NovaSearch/stella_en_400M_v5",
        {**_GTE, **_LARGE, **_TWICE, "type_vocab_size": 2, "rope_theta": 160000},
        "mean",
        length=512,
        rows=(Source.CARD, Source.TEI),
        dense=((1024, True, IDENTITY),),
    ),
    _unigram(
        "Snowflake/snowflake-arctic-embed-m-v2.0",
        {**_GTE, **gte.ARCTIC},
        "cls",
        length=8192,
        rows=(Source.VLLM_ARCTIC, Source.TEI, Source.MTEB),
    ),
)
GTE_RERANKER = _reranker(
    "Alibaba-NLP/gte-multilingual-reranker-base",
    {**_GTE, "architectures": ["NewForSequenceClassification"]},
    length=8192,
    rows=(Source.VLLM_GTE, Source.ST_SCORES, Source.TEI),
)
REPOSITORIES: tuple[Repository, ...] = (*JINA, *GTE, GTE_RERANKER)

"""Cross-encoders: ms-marco, BGE, mxbai, GTE, and classifiers of pairs of sentences."""

from typing import Any

from engine.model.tasks import Activation
from tests.parity.repositories.facts import Repository
from tests.parity.repositories.forms import cross_encoder
from tests.parity.repositories.models.bert import BERT_IDS, UNCASED
from tests.parity.repositories.models.families import (
    BERT_SMALL,
    DEBERTA,
    LARGE,
    MODERNBERT,
    ROBERTA,
    SMALL,
    XLM_R,
    XLM_R_LARGE,
)
from tests.parity.repositories.models.multilingual import ROBERTA_IDS, XLM_R_IDS
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_RAW = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
_TINY = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 2, "num_hidden_layers": 2}
_XSMALL: dict[str, Any] = {**SMALL, "num_attention_heads": 6}
_BASE: dict[str, Any] = {}
_DEBERTA_IDS = BERT_IDS(of="nli-deberta-v3-small", ids=(1, 577, 281, 274, 653, 302, 2), source=Source.JS_DEBERTA)
_BGE = (Source.VLLM_BGE, Source.ST_SCORES)

_MS_MARCO = tuple(
    cross_encoder(
        f"cross-encoder/ms-marco-{size}-v2",
        {**BERT_SMALL, **sizes, "architectures": ["BertForSequenceClassification"], **_RAW},
        words=Words.UNCASED,
        length=512,
        activation=Activation.IDENTITY,
        rows=(Source.MS_MARCO, Source.ST_SCORES),
        ids=UNCASED,
    )
    for size, sizes in (("MiniLM-L6", {"num_hidden_layers": 6}), ("MiniLM-L12", SMALL), ("TinyBERT-L2", _TINY))
)
_ROBERTA = tuple(
    cross_encoder(
        name,
        {**ROBERTA, "architectures": ["RobertaForSequenceClassification"]},
        words=Words.ROBERTA,
        length=512,
        rows=(Source.ST_SCORES,),
        ids=ROBERTA_IDS,
    )
    for name in ("cross-encoder/stsb-roberta-base", "cross-encoder/quora-roberta-base")
)
_BGE_RERANKERS = tuple(
    cross_encoder(
        f"BAAI/bge-reranker-{size}",
        {**family, "architectures": ["XLMRobertaForSequenceClassification"]},
        words=Words.UNIGRAM,
        length=length,
        rows=_BGE,
        ids=XLM_R_IDS,
    )
    for size, family, length in (
        ("base", XLM_R, 512),
        ("large", XLM_R_LARGE, 512),
        ("v2-m3", {**XLM_R_LARGE, "max_position_embeddings": 8194}, 8192),
    )
)
_MXBAI = tuple(
    cross_encoder(
        f"mixedbread-ai/mxbai-rerank-{size}-v1",
        {
            **DEBERTA,
            **sizes,
            "pooler_hidden_size": sizes.get("hidden_size", 768),
            "architectures": ["DebertaV2ForSequenceClassification"],
        },
        words=Words.DEBERTA,
        length=512,
        rows=(Source.ST_SCORES, Source.TEI, Source.MTEB),
        ids=_DEBERTA_IDS,
    )
    for size, sizes in (("xsmall", _XSMALL), ("base", _BASE), ("large", LARGE))
)
_GTE = cross_encoder(
    "Alibaba-NLP/gte-reranker-modernbert-base",
    {**MODERNBERT, "architectures": ["ModernBertForSequenceClassification"]},
    words=Words.MODERN,
    length=8192,
    rows=(Source.GTE_RERANKER, Source.VLLM_GTE, Source.ST_SCORES),
)
REPOSITORIES: tuple[Repository, ...] = (*_MS_MARCO, *_ROBERTA, *_BGE_RERANKERS, *_MXBAI, _GTE)

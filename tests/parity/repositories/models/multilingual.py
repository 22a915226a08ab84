"""Embedding models with XLM-RoBERTa's vocabulary, and RoBERTa: multilingual E5, paraphrase-multilingual, BGE-M3."""

from dataclasses import replace

from tests.parity.repositories.facts import Ids, Repository
from tests.parity.repositories.forms import embedding
from tests.parity.repositories.models.bert import E5_PREFIXES
from tests.parity.repositories.models.families import LARGE, MINILM_MULTILINGUAL, ROBERTA, XLM_R, XLM_R_LARGE
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

XLM_R_IDS = Ids(
    of="bge-reranker-base",
    text="How are you doing?",
    ids=(0, 11249, 621, 398, 20594, 32, 2),
    first="<s>",
    last="</s>",
    source=Source.JS_XLM_R,
)
_MINILM_IDS = Ids(
    of="paraphrase-multilingual-MiniLM-L12-v2",
    text="How are you doing?",
    ids=XLM_R_IDS.ids,
    first="<s>",
    last="</s>",
    source=Source.JS_BERT,
)
_E5_SMALL_IDS = Ids(
    of="multilingual-e5-small",
    text="trailing space   ",
    ids=(0, 141037, 214, 32628, 6, 2),
    first="<s>",
    last="</s>",
    source=Source.JS_BERT,
)
# fmt: off
ROBERTA_IDS = Ids(
    of="all-distilroberta-v1",
    text="0123456789 0 1 2 3 4 5 6 7 8 9 10 100 1000",
    ids=(0, 2663, 1922, 1898, 4111, 5046, 321, 112, 132, 155, 204, 195, 231, 262, 290, 361, 158, 727, 10775, 2),
    first="<s>",
    last="</s>",
    source=Source.JS_ROBERTA,
)
# fmt: on
_INSTRUCT = ("query: Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: ",)
_E5 = (Source.E5, Source.MTEB)
_POSITIONS_8194 = {"max_position_embeddings": 8194}

REPOSITORIES: tuple[Repository, ...] = (
    embedding(
        "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
        MINILM_MULTILINGUAL,
        Words.UNIGRAM,
        "mean",
        length=128,
        model_max_length=512,
        is_normalized=False,
        rows=(Source.ST_TABLE, Source.FASTEMBED),
        ids=_MINILM_IDS,
    ),
    embedding(
        "sentence-transformers/paraphrase-multilingual-mpnet-base-v2",
        XLM_R,
        Words.UNIGRAM,
        "mean",
        length=128,
        model_max_length=512,
        is_normalized=False,
        rows=(Source.ST_TABLE, Source.FASTEMBED),
        ids=XLM_R_IDS,
    ),
    embedding(
        "intfloat/multilingual-e5-small",
        MINILM_MULTILINGUAL,
        Words.UNIGRAM,
        "mean",
        length=512,
        rows=_E5,
        ids=_E5_SMALL_IDS,
        card=E5_PREFIXES,
    ),
    embedding(
        "intfloat/multilingual-e5-base",
        XLM_R,
        Words.UNIGRAM,
        "mean",
        length=512,
        rows=_E5,
        ids=XLM_R_IDS,
        card=E5_PREFIXES,
    ),
    embedding(
        "intfloat/multilingual-e5-large",
        XLM_R_LARGE,
        Words.UNIGRAM,
        "mean",
        length=512,
        rows=_E5,
        ids=XLM_R_IDS,
        card=E5_PREFIXES,
    ),
    embedding(
        "intfloat/multilingual-e5-large-instruct",
        XLM_R_LARGE,
        Words.UNIGRAM,
        "mean",
        length=512,
        rows=(Source.CARD, Source.MTEB),
        ids=XLM_R_IDS,
        card=_INSTRUCT,
        torch_dtype="float16",
    ),
    embedding(
        "Snowflake/snowflake-arctic-embed-l-v2.0",
        {**XLM_R_LARGE, **_POSITIONS_8194},
        Words.UNIGRAM,
        "cls",
        length=8192,
        rows=(Source.VLLM_ARCTIC, Source.CARD, Source.MTEB),
        ids=XLM_R_IDS,
        prompts={"query": "query: "},
    ),
    replace(
        embedding(
            "BAAI/bge-m3",
            {**XLM_R_LARGE, **_POSITIONS_8194},
            Words.UNIGRAM,
            "cls",
            length=8192,
            rows=(Source.VLLM_BGE, Source.FASTEMBED_RS, Source.CARD),
            ids=XLM_R_IDS,
            is_pickled=True,
        ),
        also="sparse and multi-vector rows of its other heads (`tests/parity/test_parity.py`)",
    ),
    embedding(
        "ibm-granite/granite-embedding-278m-multilingual",
        XLM_R,
        Words.UNIGRAM,
        "cls",
        length=512,
        rows=(Source.CARD, Source.MTEB),
        ids=XLM_R_IDS,
    ),
    embedding(
        "ibm-granite/granite-embedding-125m-english",
        ROBERTA,
        Words.ROBERTA,
        "cls",
        length=512,
        rows=(Source.GRANITE_NOTES, Source.MTEB),
        ids=ROBERTA_IDS,
    ),
    embedding(
        "sentence-transformers/all-roberta-large-v1",
        {**ROBERTA, **LARGE, "architectures": ["RobertaForMaskedLM"]},
        Words.ROBERTA,
        "mean",
        length=256,
        model_max_length=512,
        rows=(Source.ST_TABLE, Source.VLLM_CLASSES),
        ids=ROBERTA_IDS,
    ),
)

"""Embedding models with XLM-RoBERTa's vocabulary, and RoBERTa: multilingual E5, paraphrase-multilingual, BGE-M3."""

from functools import partial

from tests.parity.repositories.facts import Ids, Repository
from tests.parity.repositories.forms import embedding
from tests.parity.repositories.models.bert import E5_PREFIXES
from tests.parity.repositories.models.families import LARGE, MINILM_MULTILINGUAL, ROBERTA, XLM_R, XLM_R_LARGE
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_ids = partial(Ids, text="How are you doing?", first="<s>", last="</s>", source=Source.JS_BERT)
XLM_R_IDS = _ids(of="bge-reranker-base", ids=(0, 11249, 621, 398, 20594, 32, 2), source=Source.JS_XLM_R)
_MINILM_IDS = _ids(of="paraphrase-multilingual-MiniLM-L12-v2", ids=XLM_R_IDS.ids)
_E5_SMALL_IDS = _ids(of="multilingual-e5-small", text="trailing space   ", ids=(0, 141037, 214, 32628, 6, 2))
ROBERTA_IDS = _ids(
    of="all-distilroberta-v1",
    text="0123456789 0 1 2 3 4 5 6 7 8 9 10 100 1000",
    ids=(0, 2663, 1922, 1898, 4111, 5046, 321, 112, 132, 155, 204, 195, 231, 262, 290, 361, 158, 727, 10775, 2),
    source=Source.JS_ROBERTA,
)
_INSTRUCT = ("query: Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: ",)
_LONG = {**XLM_R_LARGE, "max_position_embeddings": 8194}

_xlm_r = partial(embedding, words=Words.UNIGRAM, ids=XLM_R_IDS, length=512)
_paraphrase = partial(
    _xlm_r, length=128, model_max_length=512, is_normalized=False, rows=(Source.ST_TABLE, Source.FASTEMBED)
)
_e5 = partial(_xlm_r, rows=(Source.E5, Source.MTEB), card=E5_PREFIXES)
_roberta = partial(embedding, words=Words.ROBERTA, ids=ROBERTA_IDS)

_PARAPHRASE = "sentence-transformers/paraphrase-multilingual-"
REPOSITORIES: tuple[Repository, ...] = (
    _paraphrase(f"{_PARAPHRASE}MiniLM-L12-v2", MINILM_MULTILINGUAL, "mean", ids=_MINILM_IDS),
    _paraphrase(f"{_PARAPHRASE}mpnet-base-v2", XLM_R, "mean"),
    _e5("intfloat/multilingual-e5-small", MINILM_MULTILINGUAL, "mean", ids=_E5_SMALL_IDS),
    _e5("intfloat/multilingual-e5-base", XLM_R, "mean"),
    _e5("intfloat/multilingual-e5-large", XLM_R_LARGE, "mean"),
    _xlm_r(
        "intfloat/multilingual-e5-large-instruct",
        XLM_R_LARGE,
        "mean",
        rows=(Source.CARD, Source.MTEB),
        card=_INSTRUCT,
        torch_dtype="float16",
    ),
    _xlm_r(
        "Snowflake/snowflake-arctic-embed-l-v2.0",
        _LONG,
        "cls",
        length=8192,
        rows=(Source.VLLM_ARCTIC, Source.CARD, Source.MTEB),
        prompts={"query": "query: "},
    ),
    _xlm_r(
        "BAAI/bge-m3",
        _LONG,
        "cls",
        length=8192,
        rows=(Source.VLLM_BGE, Source.FASTEMBED_RS, Source.CARD),
        is_pickled=True,
        also="sparse and multi-vector rows of its other heads (`tests/parity/test_parity.py`)",
    ),
    _xlm_r("ibm-granite/granite-embedding-278m-multilingual", XLM_R, "cls", rows=(Source.CARD, Source.MTEB)),
    _roberta(
        "ibm-granite/granite-embedding-125m-english",
        ROBERTA,
        "cls",
        length=512,
        rows=(Source.GRANITE_NOTES, Source.MTEB),
    ),
    _roberta(
        "sentence-transformers/all-roberta-large-v1",
        {**ROBERTA, **LARGE, "architectures": ["RobertaForMaskedLM"]},
        "mean",
        length=256,
        model_max_length=512,
        rows=(Source.ST_TABLE, Source.VLLM_CLASSES),
    ),
)

"""Embedding models of the BERT family with English or Chinese words: BGE, E5, GTE, Arctic, mxbai, all-MiniLM."""

from functools import partial

from tests.parity.repositories.facts import Ids, Repository
from tests.parity.repositories.forms import TANH, embedding
from tests.parity.repositories.models.families import BERT, BERT_LARGE, BERT_SMALL, MPNET
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_DOING = "How are you doing?"
BERT_IDS = partial(Ids, text=_DOING, first="[CLS]", last="[SEP]", source=Source.JS_BERT)
UNCASED = BERT_IDS(of="bert-base-uncased", ids=(101, 2129, 2024, 2017, 2725, 1029, 102))
_CHINESE = BERT_IDS(of="bge-base-zh-v1.5", ids=(101, 9510, 8995, 8357, 9962, 8291, 136, 102))
# "How" is not in this vocabulary, and its tokenizer does not write it small
_CHINESE_SMALL = BERT_IDS(of="bge-small-zh-v1.5", ids=(101, 100, 8995, 8357, 9962, 8291, 136, 102))
_MPNET_IDS = (0, 2133, 2028, 2021, 2729, 1033, 2)
_MPNET = Ids(of="all-mpnet-base-v2", text=_DOING, ids=_MPNET_IDS, first="<s>", last="</s>", source=Source.JS_MPNET)

QUERY = "query: Represent this sentence for searching relevant passages: "
E5_PREFIXES = ("query: query: ", "document: passage: ")
_IDS = ("embeddings.position_ids",)  # transformers saved this before 4.31
_FAST = (Source.FASTEMBED, Source.MTEB)
_ARCTIC = (Source.FASTEMBED, Source.VLLM_ARCTIC, Source.MTEB)
_TABLE = (Source.ST_TABLE, Source.MTEB)
_ST = "sentence-transformers/"
_SIZES = (("small", BERT_SMALL), ("base", BERT), ("large", BERT_LARGE))

_english = partial(embedding, words=Words.UNCASED, ids=UNCASED, length=512)
_mpnet = partial(embedding, words=Words.MPNET, ids=_MPNET, rows=_TABLE)

_SENTENCE_TRANSFORMERS = (
    _english(
        f"{_ST}all-MiniLM-L6-v2",
        BERT_SMALL,
        "mean",
        length=256,
        num_hidden_layers=6,
        model_max_length=512,
        rows=(Source.MINILM, Source.ST_TABLE),
        buffers=_IDS,
    ),
    _english(f"{_ST}all-MiniLM-L12-v2", BERT_SMALL, "mean", length=256, rows=_TABLE, buffers=_IDS),
    _english(f"{_ST}multi-qa-MiniLM-L6-cos-v1", BERT_SMALL, "mean", num_hidden_layers=6, rows=_TABLE),
    _mpnet(f"{_ST}all-mpnet-base-v2", MPNET, "mean", length=384),
    _mpnet(f"{_ST}multi-qa-mpnet-base-dot-v1", MPNET, "cls", length=512, is_normalized=False),
)

_LABSE = embedding(
    f"{_ST}LaBSE",
    BERT,
    "cls",
    words=Words.CASED,
    length=256,
    dense=((768, True, TANH),),
    rows=(Source.LABSE,),
    ids=BERT_IDS(
        of="LaBSE",
        text="let a = obj.toString(); toString();",
        ids=(101, 17214, 170, 134, 228877, 119, 14986, 368304, 113, 114, 132, 14986, 368304, 113, 114, 132, 102),
    ),
    vocab_size=501153,
    directionality="bidi",
    pooler_fc_size=768,
    pooler_num_attention_heads=12,
    pooler_num_fc_layers=3,
    pooler_size_per_head=128,
    pooler_type="first_token_transform",
)

_SMALL_CHINESE = {**BERT, "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8}
_BGE_REPOSITORIES = (
    *(
        _english(
            f"BAAI/bge-{size}-en-v1.5",
            family,
            "cls",
            do_lower_case=True,
            rows=(Source.VLLM_BGE, *_FAST),
            card=(QUERY,),
            buffers=_IDS,
        )
        for size, family in _SIZES
    ),
    *(
        embedding(
            f"BAAI/bge-{size}-zh-v1.5",
            {**family, "vocab_size": 21128},
            "cls",
            words=Words.UNCASED if ids is _CHINESE else Words.CASED,
            length=512,
            rows=(Source.VLLM_BGE, Source.FASTEMBED_RS, Source.MTEB),
            ids=ids,
            card=("query: 为这个句子生成表示以用于检索相关文章：",),  # noqa: RUF001
            is_pickled=size != "small",
        )
        for size, family, ids in (
            ("small", _SMALL_CHINESE, _CHINESE_SMALL),
            ("base", BERT, _CHINESE),
            ("large", BERT_LARGE, None),
        )
    ),
)

_MEAN = (
    *(
        _english(
            f"intfloat/e5-{size}-v2", family, "mean", rows=(Source.E5, Source.MTEB), card=E5_PREFIXES, buffers=_IDS
        )
        for size, family in _SIZES
    ),
    _english("thenlper/gte-small", BERT_SMALL, "mean", rows=(Source.CARD, Source.MTEB)),
    _english("thenlper/gte-base", BERT, "mean", rows=_FAST),
    _english("thenlper/gte-large", BERT_LARGE, "mean", rows=(Source.VLLM_GTE, *_FAST)),
)

_FIRST = (
    *(
        _english(
            f"Snowflake/snowflake-arctic-embed-{size}",
            family,
            "cls",
            rows=rows,
            prompts={"query": QUERY.removeprefix("query: ")},
        )
        for size, family, rows in (
            ("xs", {**BERT_SMALL, "num_hidden_layers": 6}, _ARCTIC),
            ("s", BERT_SMALL, _FAST),
            ("m", BERT, _FAST),
            ("l", BERT_LARGE, _FAST),
            ("m-v1.5", BERT, (Source.VLLM_ARCTIC, Source.MTEB)),
        )
    ),
    *(
        _english(name, BERT_LARGE, "cls", is_normalized=False, rows=(*rows, Source.MTEB), card=(QUERY,))
        for name, rows in (
            ("mixedbread-ai/mxbai-embed-large-v1", (Source.FASTEMBED, Source.FASTEMBED_RS)),
            ("WhereIsAI/UAE-Large-V1", (Source.CARD,)),
        )
    ),
)

REPOSITORIES: tuple[Repository, ...] = (*_SENTENCE_TRANSFORMERS, _LABSE, *_BGE_REPOSITORIES, *_MEAN, *_FIRST)

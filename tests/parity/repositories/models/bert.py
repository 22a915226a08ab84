"""Embedding models of the BERT family with English or Chinese words: BGE, E5, GTE, Arctic, mxbai, all-MiniLM."""

from tests.parity.repositories.facts import Ids, Repository
from tests.parity.repositories.forms import embedding
from tests.parity.repositories.models.families import BERT, BERT_LARGE, BERT_SMALL, MPNET
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_DOING = "How are you doing?"
UNCASED = Ids(
    of="bert-base-uncased",
    text=_DOING,
    ids=(101, 2129, 2024, 2017, 2725, 1029, 102),
    first="[CLS]",
    last="[SEP]",
    source=Source.JS_BERT,
)
_CHINESE = Ids(
    of="bge-base-zh-v1.5",
    text=_DOING,
    ids=(101, 9510, 8995, 8357, 9962, 8291, 136, 102),
    first="[CLS]",
    last="[SEP]",
    source=Source.JS_BERT,
)
# "How" is not in this vocabulary, and its tokenizer does not write it small
_CHINESE_SMALL = Ids(
    of="bge-small-zh-v1.5",
    text=_DOING,
    ids=(101, 100, 8995, 8357, 9962, 8291, 136, 102),
    first="[CLS]",
    last="[SEP]",
    source=Source.JS_BERT,
)
_MPNET = Ids(
    of="all-mpnet-base-v2",
    text=_DOING,
    ids=(0, 2133, 2028, 2021, 2729, 1033, 2),
    first="<s>",
    last="</s>",
    source=Source.JS_MPNET,
)

QUERY = "query: Represent this sentence for searching relevant passages: "
E5_PREFIXES = ("query: query: ", "document: passage: ")
_IDS = ("embeddings.position_ids",)  # transformers saved this before 4.31
_BGE = (Source.VLLM_BGE, Source.FASTEMBED, Source.MTEB)
_FAST = (Source.FASTEMBED, Source.MTEB)
_E5_SOURCES = (Source.E5, Source.MTEB)
_ARCTIC = (Source.FASTEMBED, Source.VLLM_ARCTIC, Source.MTEB)
_TABLE = (Source.ST_TABLE, Source.MTEB)
_ST = "sentence-transformers/"

_SENTENCE_TRANSFORMERS = (
    embedding(
        f"{_ST}all-MiniLM-L6-v2",
        BERT_SMALL,
        Words.UNCASED,
        "mean",
        length=256,
        num_hidden_layers=6,
        model_max_length=512,
        rows=(Source.MINILM, Source.ST_TABLE),
        ids=UNCASED,
        buffers=_IDS,
    ),
    embedding(
        f"{_ST}all-MiniLM-L12-v2",
        BERT_SMALL,
        Words.UNCASED,
        "mean",
        length=256,
        rows=_TABLE,
        ids=UNCASED,
        buffers=_IDS,
    ),
    embedding(
        f"{_ST}multi-qa-MiniLM-L6-cos-v1",
        BERT_SMALL,
        Words.UNCASED,
        "mean",
        length=512,
        num_hidden_layers=6,
        rows=_TABLE,
        ids=UNCASED,
    ),
    embedding(f"{_ST}all-mpnet-base-v2", MPNET, Words.MPNET, "mean", length=384, rows=_TABLE, ids=_MPNET),
    embedding(
        f"{_ST}multi-qa-mpnet-base-dot-v1",
        MPNET,
        Words.MPNET,
        "cls",
        length=512,
        is_normalized=False,
        rows=_TABLE,
        ids=_MPNET,
    ),
)

_LABSE = embedding(
    f"{_ST}LaBSE",
    BERT,
    Words.CASED,
    "cls",
    length=256,
    dense=((768, True, "torch.nn.modules.activation.Tanh"),),
    rows=(Source.LABSE,),
    ids=Ids(
        of="LaBSE",
        text="let a = obj.toString(); toString();",
        ids=(101, 17214, 170, 134, 228877, 119, 14986, 368304, 113, 114, 132, 14986, 368304, 113, 114, 132, 102),
        first="[CLS]",
        last="[SEP]",
        source=Source.JS_BERT,
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
        embedding(
            f"BAAI/bge-{size}-en-v1.5",
            family,
            Words.UNCASED,
            "cls",
            length=512,
            do_lower_case=True,
            rows=_BGE,
            ids=UNCASED,
            card=(QUERY,),
            buffers=_IDS,
        )
        for size, family in (("small", BERT_SMALL), ("base", BERT), ("large", BERT_LARGE))
    ),
    *(
        embedding(
            f"BAAI/bge-{size}-zh-v1.5",
            {**family, "vocab_size": 21128},
            Words.UNCASED if ids is _CHINESE else Words.CASED,
            "cls",
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
        embedding(
            f"intfloat/e5-{size}-v2",
            family,
            Words.UNCASED,
            "mean",
            length=512,
            rows=_E5_SOURCES,
            ids=UNCASED,
            card=E5_PREFIXES,
            buffers=_IDS,
        )
        for size, family in (("small", BERT_SMALL), ("base", BERT), ("large", BERT_LARGE))
    ),
    *(
        embedding(f"thenlper/gte-{size}", family, Words.UNCASED, "mean", length=512, rows=rows, ids=UNCASED)
        for size, family, rows in (
            ("small", BERT_SMALL, (Source.CARD, Source.MTEB)),
            ("base", BERT, _FAST),
            ("large", BERT_LARGE, (Source.VLLM_GTE, *_FAST)),
        )
    ),
)

_FIRST = (
    *(
        embedding(
            f"Snowflake/snowflake-arctic-embed-{size}",
            family,
            Words.UNCASED,
            "cls",
            length=512,
            rows=rows,
            ids=UNCASED,
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
    embedding(
        "mixedbread-ai/mxbai-embed-large-v1",
        BERT_LARGE,
        Words.UNCASED,
        "cls",
        length=512,
        is_normalized=False,
        rows=(Source.FASTEMBED, Source.FASTEMBED_RS, Source.MTEB),
        ids=UNCASED,
        card=(QUERY,),
    ),
    embedding(
        "WhereIsAI/UAE-Large-V1",
        BERT_LARGE,
        Words.UNCASED,
        "cls",
        length=512,
        is_normalized=False,
        rows=(Source.CARD, Source.MTEB),
        ids=UNCASED,
        card=(QUERY,),
    ),
)

REPOSITORIES: tuple[Repository, ...] = (*_SENTENCE_TRANSFORMERS, _LABSE, *_BGE_REPOSITORIES, *_MEAN, *_FIRST)

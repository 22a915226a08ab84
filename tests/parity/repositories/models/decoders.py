"""Embedding models and generative rerankers on decoders. Qwen2 has code of its own, mostly to see both ways."""

from collections.abc import Mapping
from typing import Any

from engine.model.tasks import Activation, Task
from tests.parity.repositories import vocabularies
from tests.parity.repositories.facts import Head, Ids, Refused, Repository, Served
from tests.parity.repositories.forms import IDENTITY, embedding, plain
from tests.parity.repositories.models.families import published
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

# as published of Qwen3-0.6B; length and vocabulary are Qwen3-Embedding's
QWEN3: dict[str, Any] = published("Qwen3-Embedding-0.6B")
_QWEN3_IDS = Ids(of="Qwen3-Embedding-0.6B", first="", last="<|endoftext|>", source=Source.QWEN3_CARD)
_GEMMA_TOKENS = (2, 2299, 708, 692, 3900, 235336)
GEMMA_IDS = Ids(
    of="gemma-2", text="How are you doing?", ids=_GEMMA_TOKENS, first="<bos>", last="", source=Source.JS_GEMMA
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
_GEMMA: dict[str, Any] = published("embeddinggemma-300m")
_GEMMA2: dict[str, Any] = published("bge-multilingual-gemma2")

_QWEN3_AND_GEMMA: tuple[Repository, ...] = (
    *(
        embedding(
            f"Qwen/Qwen3-Embedding-{size}",
            {**QWEN3, **sizes},
            "last",
            words=Words.QWEN3,
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
        "mean",
        words=Words.GEMMA,
        length=2048,
        dense=((3072, False, IDENTITY), (768, False, IDENTITY)),
        rows=(Source.CARD, Source.VLLM_GEMMA, Source.FASTEMBED_RS),
        prompts=_GEMMA_PROMPTS,
        flags={"add_bos_token": True, "add_eos_token": True},
    ),
    embedding(
        "BAAI/bge-multilingual-gemma2",
        _GEMMA2,
        "last",
        words=Words.GEMMA_FIRST,
        length=8192,
        rows=(Source.VLLM_CLASSES, Source.MTEB),
        ids=GEMMA_IDS,
        prompts={"web_search_query": "<instruct>Given a web search query, retrieve relevant passages\n<query>"},
        flags={"add_bos_token": True, "add_eos_token": False},
    ),
)

_MISTRAL: dict[str, Any] = published("e5-mistral-7b-instruct")
_WITH_LAST = Ids(of="e5-mistral-7b-instruct", first="<s>", last="</s>", source=Source.E5)
_BOTH_ENDS = {"add_bos_token": True, "add_eos_token": True}
_ON_MISTRAL: tuple[Repository, ...] = tuple(
    embedding(
        name,
        _MISTRAL,
        "last",
        words=Words.LLAMA,
        length=length,
        model_max_length=32768,
        rows=(Source.E5, *sources),
        ids=_WITH_LAST,
        flags=_BOTH_ENDS,
        torch_dtype=dtype,
    )
    for name, length, sources, dtype in (
        ("intfloat/e5-mistral-7b-instruct", 4096, (Source.MTEB, Source.VLLM_CLASSES), "float16"),
        ("Salesforce/SFR-Embedding-Mistral", 4096, (Source.CARD, Source.MTEB), "float16"),
        ("Linq-AI-Research/Linq-Embed-Mistral", 4096, (Source.CARD, Source.MTEB), "bfloat16"),
    )
)

_CODE = {
    "AutoModel": "modeling_qwen.Qwen2Model",
    "AutoModelForCausalLM": "modeling_qwen.Qwen2ForCausalLM",
    "AutoModelForSequenceClassification": "modeling_qwen.Qwen2ForSequenceClassification",
}
# as published of stella_en_1.5B_v5, but for is_causal
QWEN2_FAMILY: dict[str, Any] = published("gte-Qwen2-7B-instruct")
_WIDTHS_7B = {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4}
_QWEN_ENDS = Ids(of="gte-Qwen2-1.5B-instruct", first="", last="<|endoftext|>", source=Source.VLLM_QWEN)
_QWEN_TOKENIZER = {
    "auto_map": {"AutoTokenizer": ["tokenization_qwen.Qwen2Tokenizer", "tokenization_qwen.Qwen2TokenizerFast"]},
    "add_eos_token": True,
}
_STELLA = {key: value for key, value in QWEN2_FAMILY.items() if key != "is_causal"}
_KALM = {  # in the sizes of Qwen2-0.5B
    **QWEN2_FAMILY,
    "architectures": ["Qwen2Model"],
    "auto_map": {"AutoModel": "modeling.Qwen2Model"},
    **{"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_hidden_layers": 24},
    "vocab_size": 151936,
}
_QZHOU = {  # in the sizes of Qwen2.5-7B
    **_STELLA,
    "architectures": ["QZhouModel"],
    "auto_map": {"AutoModel": "modeling_qzhou.QZhouModel"},
    **_WIDTHS_7B,
    "vocab_size": 152064,
}
_QZHOU_LIBRARY = {
    "hidden_size": 40,
    "intermediate_size": 52,
    "is_causal": False,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": vocabularies.SIZE,
}


def _gte(size: str, sizes: Mapping[str, int], rows: tuple[Source, ...]) -> Repository:
    return embedding(
        f"Alibaba-NLP/gte-Qwen2-{size}-instruct",
        {**QWEN2_FAMILY, **sizes},
        "last",
        words=Words.QWEN,
        length=32768,
        rows=rows,
        ids=_QWEN_ENDS,
        prompts={"query": SEARCH + " "},
        flags=_QWEN_TOKENIZER,
    )


_ON_QWEN2: tuple[Repository, ...] = (
    _gte("1.5B", {}, (Source.VLLM_GTE_MASK, Source.TEI_GTE_QWEN)),
    _gte("7B", {**_WIDTHS_7B, "max_window_layers": 28}, (Source.TEI_QWEN, Source.MTEB)),
    embedding(
        "NovaSearch/stella_en_1.5B_v5",
        _STELLA,
        "mean",
        words=Words.QWEN,
        length=512,
        is_normalized=False,
        dense=((1024, True, IDENTITY),),
        rows=(Source.STELLA, Source.CANDLE_STELLA),
        ids=_QWEN_ENDS,
        flags=_QWEN_TOKENIZER,
        refused=Refused(
            says="has no 'is_causal'",
            reason="`config.json` has no `is_causal`, and versions of its own code differ without it",
            instead='add `"is_causal": false`, as candle computes it, which was checked against its own code',
        ),
    ),
    embedding(
        "KaLM-Embedding/KaLM-embedding-multilingual-mini-instruct-v2.5",
        _KALM,
        "mean",
        words=Words.QWEN,
        length=512,
        is_normalized=False,
        rows=(Source.KALM, Source.KALM_NOTES),
    ),
    embedding(
        "Kingsoft-LLM/QZhou-Embedding",
        _QZHOU,
        "mean",
        words=Words.QWEN,
        length=8192,
        is_normalized=False,
        rows=(Source.QZHOU, Source.MTEB),
        library=_QZHOU_LIBRARY,
    ),
)

_GEMMA_RERANKER: dict[str, Any] = published("bge-reranker-v2-gemma")
# as published of Qwen2.5-0.5B
_QWEN2: dict[str, Any] = published("mxbai-rerank-base-v2")


def _answers(
    name: str, family: dict[str, Any], length: int, answers: tuple[str, str], *rows: Source, **more: Any
) -> Repository:
    served = Served(task=Task.RERANK, head=Head.ANSWER, size=1, length=length, activation=Activation.SIGMOID)
    known = {"words": Words.QWEN, "model_max_length": length, **more}
    return plain(name, family, served, rows=rows, answers=answers, **known)


GENERATIVE: tuple[Repository, ...] = (
    *(
        _answers(
            f"Qwen/Qwen3-Reranker-{size}",
            {**QWEN3, "max_position_embeddings": 40960, **sizes},
            40960,
            ("yes", "no"),
            Source.VLLM_QWEN3,
            model_max_length=131072,
        )
        for size, sizes in (("0.6B", {}), ("4B", {"hidden_size": 2560, "intermediate_size": 9728}))
    ),
    _answers("mixedbread-ai/mxbai-rerank-base-v2", _QWEN2, 32768, ("1", "0"), Source.VLLM_MXBAI),
    _answers(
        "BAAI/bge-reranker-v2-gemma",
        _GEMMA_RERANKER,
        8192,
        ("Yes", ""),
        Source.VLLM_BGE_GEMMA,
        words=Words.GEMMA_FIRST,
        ids=GEMMA_IDS,
        flags={"add_bos_token": True, "add_eos_token": False},
    ),
)

REPOSITORIES = (*_QWEN3_AND_GEMMA, *_ON_MISTRAL, *_ON_QWEN2)

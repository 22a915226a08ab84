"""Encoders of 2025 and 2026: EmbeddingGemma 2, LFM2.5 that sees both ways, and models on ModernBERT and mmBERT.

Their own files are in no public repository; a source says where keys and values of each are from.
"""

import string
from functools import partial
from itertools import pairwise
from typing import Any

from engine.model.tasks import Task
from tests.parity.repositories.facts import Head, Ids, Repository, Served
from tests.parity.repositories.forms import IDENTITY, embedding, plain
from tests.parity.repositories.models.families import MODERNBERT, published
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_READ = "tests/parity/repositories/own_code/test_own_code.py"
_SIDES = {"query": "query: ", "document": "document: "}

# As sentence-transformers 6 saves them: names of modules, and of what the Transformer can read.
_BASE, _SENTENCE = "sentence_transformers.base.modules.", "sentence_transformers.sentence_transformer.modules."
_TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}


def _new_form(*modules: str, pooling: str, prompts: dict[str, str], modalities: dict[str, Any]) -> dict[str, Any]:
    """Files beside config.json. modules: their classes; the second is the Pooling."""
    entries = [
        {"idx": place, "name": str(place), "path": f"{place}_{name.rpartition('.')[2]}" if place else "", "type": name}
        for place, name in enumerate(modules)
    ]
    return {
        "modules.json": entries,
        "1_Pooling/config.json": {"embedding_dimension": 768, "pooling_mode": pooling, "include_prompt": True},
        "config_sentence_transformers.json": {
            "__version__": {},
            "model_type": "SentenceTransformer",
            "prompts": prompts,
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
        "sentence_bert_config.json": {
            "transformer_task": "feature-extraction",
            "modality_config": modalities,
            "module_output_name": "token_embeddings",
        },
    }


_SEARCH, _SIMILAR = "task: search result | query: ", "task: sentence similarity | query: "
_CODE, _CLASSES = "task: code retrieval | query: ", "task: classification | query: "
_GEMMA2_PROMPTS = {
    **dict.fromkeys(("query", "SearchQuery", "Retrieval", "Retrieval-query", "Reranking", "BitextMining"), _SEARCH),
    **dict.fromkeys(("document", "Document", "Retrieval-document"), "title: none | text: "),
    **dict.fromkeys(("CodeRetrieval", "InstructionRetrieval"), _CODE),
    "Clustering": "task: clustering | query: ",
    **dict.fromkeys(("Classification", "MultilabelClassification"), _CLASSES),
    "FactChecking": "task: fact checking | query: ",
    "QuestionAnswering": "task: question answering | query: ",
    **dict.fromkeys(("PairClassification", "SentenceSimilarity", "STS", "Summarization"), _SIMILAR),
}
_MESSAGE = {"message": {**_TEXT, "format": "structured"}}
_GEMMA2 = plain(
    "google/embeddinggemma-2",
    published("embeddinggemma-2"),
    Served(pooling="mean", is_normalized=True, size=768, length=8192),
    words=Words.GEMMA,
    model_max_length=8192,
    rows=(Source.GEMMA2_CODE, Source.MTEB),
    ids=Ids(of="embeddinggemma-2", first="<bos>", last="<eos>", source=Source.GEMMA2_CODE),
    flags={"add_bos_token": True, "add_eos_token": True},
    others=_new_form(
        f"{_BASE}transformer.Transformer",
        f"{_SENTENCE}pooling.Pooling",
        f"{_BASE}normalize.Normalize",
        pooling="mean",
        prompts=_GEMMA2_PROMPTS,
        modalities={**dict.fromkeys(("text", "image", "audio", "video"), _TEXT), **_MESSAGE},
    ),
)


def _pylate(widths: tuple[int, ...], lengths: tuple[int, int], **options: Any) -> dict[str, Any]:
    """Files of PyLate. widths: of the rows before, between and after layers; all but the last add what they read."""
    sizes = list(pairwise(widths))
    classes = ["sentence_transformers.models.Transformer", *("pylate.models.Dense.Dense" for _ in sizes)]
    dense = {
        f"{place}_Dense/config.json": {
            **{"in_features": before, "out_features": after, "bias": False, "activation_function": IDENTITY},
            "use_residual": place < len(sizes),
        }
        for place, (before, after) in enumerate(sizes, start=1)
    }
    return {
        "modules.json": [
            {"idx": place, "name": str(place), "path": f"{place}_Dense" if place else "", "type": name}
            for place, name in enumerate(classes)
        ],
        **dense,
        "config_sentence_transformers.json": {
            "model_type": "ColBERT",
            **{"query_prefix": "[Q] ", "document_prefix": "[D] ", "similarity_fn_name": "MaxSim", "prompts": {}},
            **{"query_length": lengths[0], "document_length": lengths[1], "attend_to_expansion_tokens": False},
            **options,
        },
        "sentence_bert_config.json": {"max_seq_length": max(lengths) - 1, "do_lower_case": False},
    }


def _vectors(length: int) -> Served:
    return Served(task=Task.LATE_INTERACTION, head=Head.COLBERT, size=128, length=length)


_LFM = published("LFM2.5-Embedding-350M")
_LFM_IDS = Ids(of="LFM2.5-ColBERT-350M", first="<|startoftext|>", last="", source=Source.LFM_NOTES)
_PUNCTUATION = list(string.punctuation)
_LIQUID: tuple[Repository, ...] = (
    embedding(
        "LiquidAI/LFM2.5-Embedding-350M",
        _LFM,
        "cls",
        words=Words.LFM,
        length=512,
        is_normalized=False,
        rows=(Source.LFM_CODE, Source.LFM_NOTES, Source.MTEB),
        ids=_LFM_IDS,
        prompts=_SIDES,
        flags={"eos_token": "<|im_end|>", "pad_token": "<|pad|>"},
        held_by=_READ,
    ),
    plain(
        "LiquidAI/LFM2.5-ColBERT-350M",
        _LFM,
        _vectors(512),
        words=Words.LFM,
        model_max_length=512,
        rows=(Source.LFM_CODE, Source.LFM_NOTES, Source.MTEB),
        ids=_LFM_IDS,
        flags={"eos_token": "<|im_end|>", "pad_token": "<|pad|>"},
        others=_pylate((1024, 128), (32, 512), skiplist_words=_PUNCTUATION),
        held_by=_READ,
        vocab_size=64402,
    ),
)

_MMBERT: dict[str, Any] = {
    **MODERNBERT,
    **{"bos_token_id": 2, "cls_token_id": 1, "eos_token_id": 1, "pad_token_id": 0, "sep_token_id": 1},
    **{"global_rope_theta": 160000.0, "local_rope_theta": 160000.0, "mask_token_id": 4, "vocab_size": 256000},
    "position_embedding_type": "sans_pos",
}
_SMALL: dict[str, Any] = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 12}
_granite = partial(embedding, pooling="cls", is_normalized=False, length=8192)
_GRANITE: tuple[Repository, ...] = (
    _granite(
        "ibm-granite/granite-embedding-small-english-r2",
        {**MODERNBERT, **_SMALL, "global_rope_theta": 80000.0},
        words=Words.MODERN,
        rows=(Source.BGE_NOTES, Source.MTEB),
    ),
    _granite(
        "ibm-granite/granite-embedding-97m-multilingual-r2",
        {**_MMBERT, **_SMALL, "vocab_size": 180000},
        words=Words.MMBERT,
        rows=(),
        doubt="only its sizes were found, so pooling and prompts are those of the one of 311m",
    ),
    _granite(
        "ibm-granite/granite-embedding-311m-multilingual-r2",
        {**_MMBERT, "global_rope_theta": 150000.0, "vocab_size": 262152},
        words=Words.MMBERT,
        length=32768,
        rows=(Source.GRANITE_R2_NOTES, Source.MTEB),
        max_position_embeddings=32768,
    ),
)

_LATE = (768, 1536, 768, 128)
_ON = {"do_query_expansion": False}
_LIGHTON: tuple[Repository, ...] = (
    embedding(
        "lightonai/DenseOn",
        MODERNBERT,
        "cls",
        words=Words.MODERN,
        length=512,
        is_normalized=False,
        rows=(Source.CARD, Source.LIGHTON),
        card=("query: query: ", "document: document: "),
    ),
    plain(
        "lightonai/mDenseOn",
        _MMBERT,
        Served(pooling="cls", size=768, length=8192),
        words=Words.MMBERT,
        model_max_length=8192,
        rows=(Source.LIGHTON_NOTES, Source.LIGHTON, Source.MTEB),
        ids=Ids(of="mDenseOn", first="<bos>", last="<eos>", source=Source.LIGHTON_NOTES),
        others=_new_form(
            f"{_BASE}transformer.Transformer",
            f"{_SENTENCE}pooling.Pooling",
            pooling="cls",
            prompts=_SIDES,
            modalities={"text": _TEXT},
        ),
    ),
    plain(
        "lightonai/LateOn",
        MODERNBERT,
        _vectors(8192),
        words=Words.MODERN,
        model_max_length=8192,
        rows=(),
        doubt="mteb has 8,192 tokens, and the script of its training 300 of a document",
        others=_pylate(_LATE, (8192, 8192), skiplist_words=_PUNCTUATION, **_ON),
    ),
    plain(
        "lightonai/mLateOn",
        _MMBERT,
        _vectors(8192),
        words=Words.MMBERT,
        model_max_length=8192,
        rows=(Source.LIGHTON, Source.ST_LATE_MODELS),
        others=_pylate(_LATE, (8192, 8192), skiplist_words=[], **_ON),
    ),
)

REPOSITORIES = (_GEMMA2, *_LIQUID, *_GRANITE, *_LIGHTON)

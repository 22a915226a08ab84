"""SPLADE models, late interaction (Stanford's ColBERT and PyLate's models), and static tables."""

import string
from typing import Any

from engine.model.tasks import Task
from tests.parity.repositories.facts import Head, Repository, Served
from tests.parity.repositories.forms import plain
from tests.parity.repositories.models.bert import UNCASED
from tests.parity.repositories.models.families import BERT, BERT_SMALL, DISTILBERT, MODERNBERT
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

_PAIRS = 2  # numbers in each entry of a sparse row: its place and its weight
_PACKAGE = "sentence_transformers.sparse_encoder.models."
_FILES: dict[str, Any] = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": f"{_PACKAGE}MLMTransformer"},
        {"idx": 1, "name": "1", "path": "1_SpladePooling", "type": f"{_PACKAGE}SpladePooling"},
    ],
    "1_SpladePooling/config.json": {
        "pooling_strategy": "max",
        "activation_function": "relu",
        "word_embedding_dimension": 30522,
    },
    "config_sentence_transformers.json": {"model_type": "SparseEncoder", "prompts": {"query": "", "document": ""}},
    "sentence_bert_config.json": {"max_seq_length": 512, "do_lower_case": False},
}
_BERT = {**BERT, "architectures": ["BertForMaskedLM"]}
_SPLADE = Served(task=Task.SPARSE, head=Head.SPLADE, size=_PAIRS, length=512)

_SPLADE_MODELS: tuple[Repository, ...] = tuple(
    plain(
        name,
        family,
        _SPLADE,
        words=Words.UNCASED,
        rows=(Source.SPLADE, Source.ST_SPARSE),
        ids=UNCASED,
        model_max_length=512,
        others=_FILES,
    )
    for name, family in (
        *((f"naver/{name}", _BERT) for name in ("splade-v3", "splade-cocondenser-ensembledistil")),
        ("prithivida/Splade_PP_en_v1", _BERT),
        ("naver/splade-v3-distilbert", {**DISTILBERT, "architectures": ["DistilBertForMaskedLM"]}),
    )
)

_STANFORD: dict[str, Any] = {
    "query_token_id": "[unused0]",
    "doc_token_id": "[unused1]",
    "query_token": "[Q]",
    "doc_token": "[D]",
    "similarity": "cosine",
    "doc_maxlen": 180,
    "query_maxlen": 32,
    "mask_punctuation": True,
    "attend_to_mask_tokens": False,
}
_ANSWERAI = {"doc_maxlen": 300, "dim": 96}
_PYLATE: dict[str, Any] = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
    ],
    "1_Dense/config.json": {
        "in_features": 768,
        "out_features": 128,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    },
    "config_sentence_transformers.json": {
        "model_type": "ColBERT",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 48,
        "document_length": 300,
        "attend_to_expansion_tokens": False,
        "skiplist_words": list(string.punctuation),
        "similarity_fn_name": "MaxSim",
        "prompts": {},
    },
    "sentence_bert_config.json": {"max_seq_length": 299, "do_lower_case": False},
}


def _vectors(size: int, length: int) -> Served:
    return Served(task=Task.LATE_INTERACTION, head=Head.COLBERT, size=size, length=length)


_COLBERTS: tuple[Repository, ...] = (
    *(
        plain(
            name,
            {**family, "architectures": ["HF_ColBERT"]},
            _vectors(metadata["dim"], 512),
            words=Words.UNCASED,
            rows=(Source.COLBERT, Source.ST_LATE),
            ids=UNCASED,
            model_max_length=512,
            others={"artifact.metadata": {**_STANFORD, **metadata}},
        )
        for name, family, metadata in (
            ("colbert-ir/colbertv2.0", BERT, {"dim": 128}),
            ("answerdotai/answerai-colbert-small-v1", BERT_SMALL, _ANSWERAI),
        )
    ),
    plain(
        "lightonai/GTE-ModernColBERT-v1",
        MODERNBERT,
        _vectors(128, 300),
        words=Words.MODERN,
        rows=(Source.CARD, Source.ST_LATE),
        model_max_length=299,
        others=_PYLATE,
    ),
)

_MODELS = "sentence_transformers.models."
_NO_LIMIT = 32768


def _modules(path: str, *, is_normalized: bool) -> list[dict[str, Any]]:
    normalize = [{"idx": 1, "name": "1", "path": "1_Normalize", "type": f"{_MODELS}Normalize"}]
    first = {"idx": 0, "name": "0", "path": path, "type": f"{_MODELS}StaticEmbedding"}
    return [first, *(normalize if is_normalized else [])]


def _served(size: int, *, is_normalized: bool) -> Served:
    return Served(head=Head.STATIC, pooling="mean", is_normalized=is_normalized, size=size, length=_NO_LIMIT)


_STATIC: tuple[Repository, ...] = (
    Repository(
        name="minishlab/potion-base-8M",
        files={
            "config.json": {
                "model_type": "model2vec",
                "architectures": ["StaticModel"],
                "apply_pca": 256,
                "apply_zipf": True,
                "hidden_dim": 256,
                "seq_length": 1000000,
                "normalize": True,
            },
            "modules.json": _modules(".", is_normalized=True),
        },
        words=Words.STATIC,
        expected=_served(256, is_normalized=True),
        rows=(Source.ST_PRETRAINED,),
        table=("embeddings", ""),
    ),
    Repository(
        name="sentence-transformers/static-retrieval-mrl-en-v1",
        files={"modules.json": _modules("0_StaticEmbedding", is_normalized=False)},
        words=Words.STATIC,
        expected=_served(1024, is_normalized=False),
        rows=(Source.ST_PRETRAINED,),
        table=("embedding.weight", "0_StaticEmbedding"),
    ),
)

REPOSITORIES = (*_SPLADE_MODELS, *_COLBERTS, *_STATIC)

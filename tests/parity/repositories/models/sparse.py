"""SPLADE models, and OpenSearch's with a table for queries."""

from typing import Any

from engine.model.tasks import Task
from tests.parity.repositories.facts import Head, Repository, Served
from tests.parity.repositories.forms import plain
from tests.parity.repositories.models.bert import UNCASED
from tests.parity.repositories.models.families import BERT, DISTILBERT
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
_SPLADE = Served(task=Task.SPARSE, head=Head.SPLADE, size=_PAIRS, length=512)

REPOSITORIES: tuple[Repository, ...] = (
    *(
        plain(
            name,
            {**BERT, "architectures": ["BertForMaskedLM"]},
            Words.UNCASED,
            _SPLADE,
            rows=(Source.SPLADE, Source.ST_SPARSE),
            ids=UNCASED,
            model_max_length=512,
            others=_FILES,
        )
        for name in (
            "naver/splade-v3",
            "naver/splade-cocondenser-ensembledistil",
            "prithivida/Splade_PP_en_v1",
        )
    ),
    plain(
        "naver/splade-v3-distilbert",
        {**DISTILBERT, "architectures": ["DistilBertForMaskedLM"]},
        Words.UNCASED,
        _SPLADE,
        rows=(Source.SPLADE, Source.ST_SPARSE),
        ids=UNCASED,
        model_max_length=512,
        others=_FILES,
    ),
)

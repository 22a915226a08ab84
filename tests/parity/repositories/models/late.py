"""Late interaction: Stanford's ColBERT and PyLate's models."""

import string
from typing import Any

from engine.model.tasks import Task
from tests.parity.repositories.facts import Head, Repository, Served
from tests.parity.repositories.forms import plain
from tests.parity.repositories.models.bert import UNCASED
from tests.parity.repositories.models.families import BERT, BERT_SMALL, MODERNBERT
from tests.parity.repositories.sources import Source
from tests.parity.repositories.vocabularies import Words

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


REPOSITORIES: tuple[Repository, ...] = (
    plain(
        "colbert-ir/colbertv2.0",
        {**BERT, "architectures": ["HF_ColBERT"]},
        Words.UNCASED,
        _vectors(128, 512),
        rows=(Source.COLBERT, Source.ST_LATE),
        ids=UNCASED,
        model_max_length=512,
        others={"artifact.metadata": {**_STANFORD, "dim": 128}},
    ),
    plain(
        "answerdotai/answerai-colbert-small-v1",
        {**BERT_SMALL, "architectures": ["HF_ColBERT"]},
        Words.UNCASED,
        _vectors(96, 512),
        rows=(Source.COLBERT, Source.ST_LATE),
        ids=UNCASED,
        model_max_length=512,
        others={"artifact.metadata": {**_STANFORD, **_ANSWERAI}},
    ),
    plain(
        "lightonai/GTE-ModernColBERT-v1",
        MODERNBERT,
        Words.MODERN,
        _vectors(128, 300),
        rows=(Source.CARD, Source.ST_LATE),
        model_max_length=299,
        others=_PYLATE,
    ),
)

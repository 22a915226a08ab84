"""config.json of the models that the repositories were made of, in the sizes of each family's base model.

BERT is the file of all-MiniLM-L6-v2 in the sizes of bert-base; the others have the keys that transformers' class of
that release saved, with its defaults.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any


def published(name: str) -> dict[str, Any]:
    """config.json of a model, as its repository has it: a copy. Those that are called small have other sizes alone."""
    return dict(json.loads(json.dumps(_all()[name])))


@cache
def _all() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(__file__).parents[1] / "published.json").read_text())
    return found


BERT: dict[str, Any] = published("bert-base-uncased")
SMALL: dict[str, Any] = {"hidden_size": 384, "intermediate_size": 1536}
LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
}
BERT_SMALL = {**BERT, **SMALL}
BERT_LARGE = {**BERT, **LARGE}
_ROBERTA = {
    "bos_token_id": 0,
    "eos_token_id": 2,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "pad_token_id": 1,
    "type_vocab_size": 1,
}
ROBERTA: dict[str, Any] = {
    **BERT,
    **_ROBERTA,
    "architectures": ["RobertaModel"],
    "model_type": "roberta",
    "vocab_size": 50265,
}
XLM_R: dict[str, Any] = {
    **BERT,
    **_ROBERTA,
    "architectures": ["XLMRobertaModel"],
    "model_type": "xlm-roberta",
    "output_past": True,
    "vocab_size": 250002,
}
XLM_R_LARGE = {**XLM_R, **LARGE}
# Multilingual-MiniLM is a BERT with the vocabulary of XLM-RoBERTa.
MINILM_MULTILINGUAL: dict[str, Any] = {**BERT_SMALL, "tokenizer_class": "XLMRobertaTokenizer", "vocab_size": 250037}
MPNET: dict[str, Any] = published("all-mpnet-base-v2")
DISTILBERT: dict[str, Any] = published("distilbert-base-uncased")
# as published of microsoft/deberta-v3-base
DEBERTA: dict[str, Any] = published("deberta-v3-base")
# as published of gte-reranker-modernbert-base (a test of a Rust crate holds it), but for the labels
MODERNBERT: dict[str, Any] = published("ModernBERT-base")

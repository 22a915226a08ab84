"""Tiny random models with a Router, saved by sentence-transformers, and a tokenizer that has special tokens."""

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Module, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, AutoModelForMaskedLM, PreTrainedTokenizerFast

from tests.engine.tiny_models import VOCAB_SIZE, save_whole

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def tokenizer() -> PreTrainedTokenizerFast:
    """[CLS] … [SEP] of the words w5, w6, … which have their own number as id."""
    words = {f"w{number}": number for number in range(len(SPECIAL), VOCAB_SIZE)}
    made = Tokenizer(WordLevel({word: number for number, word in enumerate(SPECIAL)} | words, unk_token="[UNK]"))
    made.pre_tokenizer = WhitespaceSplit()
    made.add_special_tokens(list(SPECIAL))
    made.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    named = {f"{name.strip('[]').lower()}_token": name for name in SPECIAL}
    return PreTrainedTokenizerFast(tokenizer_object=made, **named)  # type: ignore[no-untyped-call]


def bare(folder: Path, library_class: Any) -> str:
    """A tiny BERT of the given class, with the tokenizer."""
    save_whole("bert", folder, library_class)
    tokenizer().save_pretrained(folder)
    return str(folder)


def query_weights() -> torch.Tensor:
    """Of each word, some of them zero; the special tokens would show."""
    torch.manual_seed(7)
    weights = torch.rand(VOCAB_SIZE) + 0.5
    weights[20:25] = 0
    return weights


def inference_free(folder: Path) -> SparseEncoder:
    """Saved in `folder`: documents by SPLADE, queries by their words' weights."""
    document: list[Module] = [
        Transformer(bare(folder.with_name("bare"), AutoModelForMaskedLM), transformer_task="fill-mask"),
        SpladePooling("max", "log1p_relu"),
    ]
    query: list[Module] = [SparseStaticEmbedding(tokenizer(), query_weights())]  # type: ignore[arg-type]
    model = SparseEncoder(modules=[Router.for_query_document(query, document)], device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    return model


def same_for_both(folder: Path) -> SentenceTransformer:
    """Saved in `folder`: both routes are of the same modules."""
    route: list[Module] = [Transformer(bare(folder.with_name("bare"), AutoModel)), Pooling(32, "mean")]
    model = SentenceTransformer(modules=[Router.for_query_document(route, route), Normalize()], device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    return model

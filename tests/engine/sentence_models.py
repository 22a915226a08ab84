"""Tiny random models in folders that sentence-transformers itself has written, and what it makes of texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn
from transformers import PreTrainedTokenizerFast

from tests.engine.tiny_models import HIDDEN_SIZE, VOCAB_SIZE, save

SEQLENS = (7, 1, 30, 7, 60, 2)


def words() -> Tokenizer:
    """Token 17 is written w17, and so on; nothing is added to a text."""
    known = {"[PAD]": 0, "[UNK]": 1, **{f"w{number}": number for number in range(2, VOCAB_SIZE)}}
    tokenizer = Tokenizer(WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return tokenizer


def save_words(folder: Path) -> None:
    """The tokenizer's files."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words(), pad_token="[PAD]", unk_token="[UNK]")  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(folder)


def text_of(sequence: Sequence[int]) -> str:
    """What these ids are made of."""
    return " ".join(f"w{number}" for number in sequence)


def save_chain(
    folder: Path,
    pooling: Any,
    *modules: nn.Module,
    family: str = "bert",
    seed: int = 1,
    include_prompt: bool = True,
) -> Path:
    """A transformer, this pooling and these modules, whose weights are arbitrary and far from their first ones."""
    bare = save(family, folder.with_name(f"{folder.name} bare"))
    save_words(bare)
    torch.manual_seed(seed)
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                parameter.normal_(std=0.5)
    chain = [Transformer(str(bare)), Pooling(HIDDEN_SIZE, pooling, include_prompt), *modules]
    SentenceTransformer(modules=chain, device="cpu").save_pretrained(str(folder), create_model_card=False)
    return folder


def encoded(folder: Path, sequences: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """[B, D] by sentence-transformers, one text at a time."""
    model = SentenceTransformer(str(folder), device="cpu")
    texts = [text_of(sequence) for sequence in sequences]
    assert [model.tokenizer(text)["input_ids"] for text in texts] == [list(sequence) for sequence in sequences]
    return np.stack([model.encode(text) for text in texts])

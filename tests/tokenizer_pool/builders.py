"""Small tokenizers of each kind, and folders that hold them."""

import json
import random
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel

from tests.tokenizer_pool.samples import SAMPLES

CORPUS = [*SAMPLES.values(), "The harbour at seven; nobody has missed the ferry to the island before."]

DEBERTA_V2_TOKENS = {
    "cls_token": "<s>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
    "bos_token": "<s>",
    "eos_token": "</s>",
}


def write_json(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields))


def with_ends(backend: tokenizers.Tokenizer, first: str, last: str, *, pair: str) -> None:
    ends = [(token, backend.token_to_id(token)) for token in (first, last)]
    single = f"{first} $A {last}"
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ends)


def word_piece(*, lowercase: bool) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=400, special_tokens=specials))
    with_ends(backend, "[CLS]", "[SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1")
    return backend


def byte_level() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def roberta() -> tokenizers.Tokenizer:
    backend = byte_level()
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return backend


def qwen() -> tokenizers.Tokenizer:
    """A last token put there by tokenizer.json, whatever tokenizer_config.json says of it."""
    backend = byte_level()
    backend.normalizer = normalizers.NFC()
    with_last = processors.TemplateProcessing(single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 5)])
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), with_last])
    return backend


def charsmap() -> normalizers.Precompiled:
    """SentencePiece's rules for \N{LATIN SMALL LIGATURE FI} and a full-width 2: a Darts trie, and what they put."""
    units = [0] * 256
    units[:7] = 243712, 179439, 131244, 7553, 1 << 31 | 2, 3474, 1 << 31
    units[18] = 136380
    trie = struct.pack("<256I", *units)
    return normalizers.Precompiled(struct.pack("<I", len(trie)) + trie + b"2\0fi\0")


def unigram(*, pair: str = "<s> $A </s> </s> $B </s>") -> tokenizers.Tokenizer:
    """Every pair of neighbours is a piece, so that many texts can be cut in two ways that score almost the same."""
    chance = random.Random(0)
    words = {"▁" + word for text in CORPUS for word in text.split()}
    pieces = {char for word in words for char in word} | {
        pair for word in words for pair in map("".join, pairwise(word))
    }
    vocab = [(special, 0.0) for special in ("<s>", "<pad>", "</s>", "<unk>")]
    vocab += [(piece, -5 - 8 * chance.random()) for piece in sorted(pieces)]
    backend = tokenizers.Tokenizer(models.Unigram([*vocab, ("<mask>", 0.0)], unk_id=3))
    backend.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    backend.normalizer = normalizers.Sequence([charsmap(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    with_ends(backend, "<s>", "</s>", pair=pair)
    return backend


def bert_folder(folder: Path, *, lowercase: bool = True, **config: Any) -> Path:
    word_piece(lowercase=lowercase).save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", {"model_type": "bert"})
    write_json(folder / "tokenizer_config.json", config)
    return folder


def folder_of(
    folder: Path, backend: tokenizers.Tokenizer, name: str, *, model_type: str = "bert", **flags: Any
) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", {"model_type": model_type})
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": name, **flags})
    return folder


def save_tiny_bert(folder: Path, vocab_size: int) -> None:
    """A model for libraries that load one beside its tokenizer."""
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=vocab_size, **sizes)).save_pretrained(folder)

"""Small tokenizers of the kinds that the repositories have, with the special tokens where the real ones have them.

Only the forms are those of the real files; words are letters and digits.
"""

import enum
import string
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SIZE = 320  # entries, at most
_LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits


class Words(enum.StrEnum):
    """A kind of tokenizer.json."""

    UNCASED = "WordPiece, lower case, [CLS] … [SEP]"
    CASED = "WordPiece, [CLS] … [SEP]"
    KOREAN = "WordPiece of a RoBERTa, [CLS] … [SEP]"
    MPNET = "WordPiece, lower case, <s> … </s>"
    UNIGRAM = "SentencePiece, <s> … </s>"
    ROBERTA = "bytes, <s> … </s>"
    MODERN = "bytes, [CLS] … [SEP]"
    QWEN3 = "bytes, … <|endoftext|>"  # its template adds the last token
    QWEN = "bytes, no special tokens"
    LLAMA = "SentencePiece, <s> … "
    GEMMA = "SentencePiece, <bos> … <eos>"
    GEMMA_FIRST = "SentencePiece, <bos> … "
    DEBERTA = "SentencePiece, [CLS] … [SEP]"
    T5 = "SentencePiece, … </s>"
    MISTRAL3 = "bytes of Ministral 3, <s> … "
    GIGA = "bytes of Giga, <s> … </s>"
    LLAMA3 = "bytes, <|begin_of_text|> … "
    JINA_COLBERT = "SentencePiece with markers, <s> … </s>"
    STATIC = "WordPiece, lower case, no special tokens"
    LFM = "bytes, <|startoftext|> … "
    MMBERT = "SentencePiece of a ModernBERT, <bos> … <eos>"


# The ids of special tokens that small vocabularies can have too; the others follow.
_BERT = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103, "[unused0]": 1, "[unused1]": 2}
_ROBERTA = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4}
_MODERN = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "[Q] ": 5, "[D] ": 6}
_QWEN = {
    "<|endoftext|>": 0,
    "<|im_start|>": 1,
    "<|im_end|>": 2,
    "yes": 3,
    "no": 4,
    "Yes": 5,
}  # answers are one token each
_GEMMA = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, "Yes": 4, "yes": 5, "no": 6}
_LLAMA = {"<unk>": 0, "<s>": 1, "</s>": 2}
_DEBERTA = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "[MASK]": 4}
_SPECIALS: Mapping[Words, dict[str, int]] = {
    Words.UNCASED: _BERT,
    Words.CASED: _BERT,
    Words.KOREAN: {"[CLS]": 0, "[PAD]": 1, "[SEP]": 2, "[UNK]": 3, "[MASK]": 4},
    Words.MPNET: {**_ROBERTA, "[UNK]": 104},
    Words.UNIGRAM: _ROBERTA,
    Words.ROBERTA: _ROBERTA,
    Words.MODERN: _MODERN,
    Words.QWEN3: _QWEN,
    Words.QWEN: _QWEN,
    Words.LLAMA: _LLAMA,
    Words.GEMMA: _GEMMA,
    Words.GEMMA_FIRST: _GEMMA,
    Words.DEBERTA: _DEBERTA,
    Words.T5: {"<pad>": 0, "</s>": 1, "<unk>": 2},
    Words.MISTRAL3: _LLAMA,
    Words.GIGA: _LLAMA,
    Words.LLAMA3: {"<|begin_of_text|>": 0, "<|end_of_text|>": 1},
    Words.JINA_COLBERT: {**_ROBERTA, "[QueryMarker]": 5, "[DocumentMarker]": 6},
    Words.STATIC: _BERT,
    Words.LFM: {"<|pad|>": 0, "<|startoftext|>": 1, "<|endoftext|>": 2, "<|im_end|>": 7, "[Q] ": 8, "[D] ": 9},
    Words.MMBERT: {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, "<mask>": 4, "[Q] ": 5, "[D] ": 6},
}


def special_ids(words: Words) -> Mapping[str, int]:
    """Ids of special tokens, by token."""
    return _SPECIALS[words]


def ends(words: Words) -> tuple[str, str]:
    """The tokens that stand around every text; "" = none."""
    _, _, shape = words.rpartition(", ")
    first, _, last = shape.partition("…")
    return ("", "") if "…" not in shape else (first.strip(), last.strip())


def save(words: Words, folder: Path) -> None:
    """tokenizer.json."""
    tokenizer = _tokenizer(words)
    tokenizer.add_special_tokens(list(_SPECIALS[words]))
    first, last = ends(words)
    shape = " ".join(filter(None, (first, "$A", last)))
    pair = (
        f"{shape} {last} $B {last}"
        if words in (Words.MPNET, Words.UNIGRAM, Words.ROBERTA)
        else f"{shape} $B:1 {last}:1"
    )
    around = [(token, tokenizer.token_to_id(token)) for token in {first, last} - {""}]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=shape, pair=pair if last else "$A $B:1", special_tokens=around
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def _tokenizer(words: Words) -> Tokenizer:
    if "WordPiece" in words:
        return _word_piece(words, is_lower="lower case" in words)
    if "SentencePiece" in words:
        return _pieces(words)
    tokenizer = Tokenizer(models.BPE(_vocabulary(words, sorted(pre_tokenizers.ByteLevel.alphabet())), []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def _word_piece(words: Words, *, is_lower: bool) -> Tokenizer:
    pieces = [*_LETTERS, *(f"##{letter}" for letter in _LETTERS), "?", ".", ","]
    tokenizer = Tokenizer(models.WordPiece(_vocabulary(words, pieces), unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=is_lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _pieces(words: Words) -> Tokenizer:
    pieces = _vocabulary(words, ["▁", *_LETTERS, *(f"▁{letter}" for letter in _LETTERS), "?", ".", ","])
    scores = [(piece, -float(number)) for number, piece in enumerate(pieces)]
    unk_id = pieces.get("<unk>", pieces.get("[UNK]", 0))
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=unk_id, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def _vocabulary(words: Words, pieces: list[str]) -> dict[str, int]:
    """Special tokens at their ids, pieces at the ids between and after them, in the order of ids."""
    specials = _SPECIALS[words]
    taken = set(specials.values())
    free = (number for number in range(SIZE) if number not in taken)
    found = {**specials, **{piece: next(free) for piece in pieces if piece not in specials}}
    return dict(sorted(found.items(), key=lambda entry: entry[1]))

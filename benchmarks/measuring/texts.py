"""Real English texts that are on every machine: prose out of the docstrings of Python's standard library.

The same for the same version of Python. Lengths are counted by the tokenizer that is given, special tokens included.
"""

import ast
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from embedline.bench.requests import MAX_TOKENS, MEDIAN_TOKENS, MIN_TOKENS, SIGMA

_PROSE = re.compile(r"^[A-Z][^<>{}=_|\\]{60,}$")  # paragraphs that are sentences and not code, tables or signatures
_SPECIAL_TOKENS = 2


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts to be sent in turn, and how many tokens each has."""

    name: str
    texts: list[str]
    token_ids: list[list[int]]  # special tokens included

    @property
    def num_tokens(self) -> int:
        """Of all texts."""
        return sum(map(len, self.token_ids))

    @property
    def tokens_per_text(self) -> float:
        """The mean."""
        return self.num_tokens / len(self.texts)

    def __str__(self) -> str:
        lengths = sorted(map(len, self.token_ids))
        middle, ninety = lengths[len(lengths) // 2], lengths[len(lengths) * 9 // 10]
        return (
            f"{self.name}: {len(lengths)} texts of {lengths[0]} to {lengths[-1]} tokens, "
            f"median {middle}, mean {self.tokens_per_text:.1f}, 90th percentile {ninety}"
        )


class Prose:
    """Cuts texts of a wished number of tokens out of one long row of paragraphs."""

    def __init__(self, tokenizer_file: Path, *, seed: int = 0) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._random = random.Random(seed)
        paragraphs = sorted(_paragraphs())
        self._random.shuffle(paragraphs)
        self._words = " ".join(paragraphs).split()
        self._at = 0

    def mixed(self, num: int) -> Corpus:
        """Log-normal lengths around 40 tokens, from 5 to 250."""
        drawn = (MEDIAN_TOKENS * self._random.lognormvariate(0.0, SIGMA) for _ in range(num))
        return self._corpus("mixed", [round(min(max(length, MIN_TOKENS), MAX_TOKENS)) for length in drawn])

    def uniform(self, name: str, num: int, *, num_tokens: int) -> Corpus:
        """All of about the same length."""
        return self._corpus(name, [num_tokens] * num)

    def spread(self, name: str, num: int, *, num_tokens: tuple[int, int]) -> Corpus:
        """Every length between two, both included, equally often."""
        return self._corpus(name, [self._random.randint(*num_tokens) for _ in range(num)])

    def given(self, name: str, texts: list[str]) -> Corpus:
        """Somebody else's texts, with their tokens."""
        return Corpus(name, texts, [encoding.ids for encoding in self._tokenizer.encode_batch(texts)])

    def _corpus(self, name: str, lengths: list[int]) -> Corpus:
        return self.given(name, [self._text(length) for length in lengths])

    def _text(self, num_tokens: int) -> str:
        """The next words, up to the end of the last token that still has room."""
        words = [self._words[(self._at + n) % len(self._words)] for n in range(num_tokens)]
        text = " ".join(words)
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        end = offsets[min(num_tokens - _SPECIAL_TOKENS, len(offsets)) - 1][1]
        self._at += len(text[:end].split())
        return text[:end]


@cache
def _paragraphs() -> frozenset[str]:
    files = Path(os.__file__).parent.glob("*.py")
    return frozenset(paragraph for file in files for paragraph in _prose_of(ast.parse(file.read_bytes())))


def _prose_of(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                line = " ".join(paragraph.split())
                if _PROSE.match(line):
                    yield line

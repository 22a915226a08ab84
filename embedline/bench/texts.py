"""The texts to send: from a file, or English ones of mixed lengths that depend on the seed alone."""

import math
import random
from pathlib import Path

from embedline.bench.options import OptionsError
from embedline.bench.sentences import SENTENCES

MEDIAN_TOKENS = 40
MIN_TOKENS, MAX_TOKENS = 5, 250
SIGMA = 0.68  # of the logarithm: a tenth of the texts has more than 96 tokens, the mean is 50
_TOKENS_PER_WORD = 1.25  # of these sentences, punctuation counted, in a WordPiece vocabulary of 30,000


def read_texts(path: Path) -> list[str]:
    """One text a line, empty lines left out. Raises OptionsError."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise OptionsError(f"--texts {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OptionsError(f"--texts {path}: not UTF-8") from None
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise OptionsError(f"--texts {path}: no text in it")
    return texts


def built_in_texts(num: int, *, seed: int) -> list[str]:
    """Log-normal lengths around 40 tokens, from 5 to 250."""
    generator = random.Random(seed)
    return [_text(generator) for _ in range(num)]


def _text(generator: random.Random) -> str:
    drawn = generator.lognormvariate(math.log(MEDIAN_TOKENS), SIGMA)
    num_words = round(min(max(drawn, MIN_TOKENS), MAX_TOKENS) / _TOKENS_PER_WORD)
    words: list[str] = []
    while len(words) < num_words:
        words += generator.choice(SENTENCES).split()
    return " ".join(words[:num_words])

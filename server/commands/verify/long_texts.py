"""Long texts for `embedline verify`: what a start can't try because it would take too long.

One is just longer than the model's window, and one is as long as the model takes, or as two CPU cores can compute in
some minutes, for the library and for us.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.model.model_folder import ModelFolder
from engine.model.telling_lengths import telling_lengths
from engine.selftest.trial import num_layer_parameters
from tokenizer_pool.tokenizer import Tokenizer

_MAX_WORK = 5e12  # products of one sequence
_OF_TEMPLATE = 256  # tokens that a template takes at most; the library does not cut what is around it


@dataclass(frozen=True, slots=True)
class LongTexts:
    """The texts, shortest first."""

    texts: tuple[str, ...]
    note: str  # how long the longest is, for people


def long_texts(folder: ModelFolder, tokenizer: Tokenizer, texts: Sequence[str]) -> LongTexts:
    """Made of these texts. Raises ModelError if config.json can't be read."""
    most = folder.max_seqlen
    is_asked = folder.max_seqlen_source == "--max-input-length"
    longest = most if is_asked or folder.is_static else min(most, _affordable(folder))
    telling = () if folder.is_static else (each for each in telling_lengths(folder.config, most) if each < longest)
    per_char = len(tokenizer.encode(texts).token_ids) / sum(map(len, texts))
    lengths = sorted({*telling, longest - (_OF_TEMPLATE if folder.template else 0)})
    made = tuple(_of_length(texts, math.ceil(length / per_char)) for length in lengths if length > 0)
    rest = "" if longest == most else "; --max-input-length N has one of N"
    return LongTexts(made, f"up to about {longest:,} of {most:,} tokens{rest}")


def _affordable(folder: ModelFolder) -> int:
    """Tokens of a sequence. Attention takes S / 6 h of the time of all else (S tokens, h numbers a row)."""
    tokens_alone = _MAX_WORK / num_layer_parameters(folder)
    # the root of S + S² / 6 h = tokens_alone
    half = 3 * folder.hidden_size
    return max(1, int(math.sqrt(half * half + 2 * half * tokens_alone) - half))


def _of_length(texts: Sequence[str], num_chars: int) -> str:
    joined = " ".join(texts)
    return (joined * (num_chars // len(joined) + 1))[:num_chars]

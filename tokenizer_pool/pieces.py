"""Cuts a request's texts into pieces that a worker tokenizes in a few milliseconds each.

Knows lengths and how fast workers have been; nothing of connections or of what tokenizing is.
"""

from bisect import bisect_right
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate, repeat

from tokenizer_pool.messages import Refusal, TextRefused, Truncation

# How long a query may find a worker busy: a piece that runs is not interrupted.
MAX_PIECE_SECONDS = 0.005

# The library tokenizes all of a text before it cuts it, some seconds for 5 MB. What no tokenizer packs into one
# token is cut off before; the factor is text-embeddings-inference's.
MAX_CHARS_PER_TOKEN = 250

# What was faster had its query tokenized before, and says nothing of the next request.
_FASTEST = 1e-7  # seconds a character, of any tokenizer on one core

_TEXT_CHARS = 20  # what a text costs besides its characters, in characters


@dataclass(frozen=True, slots=True)
class Span:
    """The texts or pairs [start, stop) of a request."""

    start: int
    stop: int
    num_chars: int  # of work: characters, prompts and what each text or pair costs besides


class Pace:
    """How long tokenizing takes, learnt from what it took."""

    def __init__(self) -> None:
        self.seconds_per_char = 1e-6  # WordPiece on a slow core, until the first answer says better

    def learn(self, num_chars: int, seconds: float) -> None:
        """Take note of what a piece took. One that was held up by something else moves little."""
        rate = self.seconds_per_char
        self.seconds_per_char += 0.1 * (min(max(seconds / num_chars, rate / 4, _FASTEST), rate * 4) - rate)

    def seconds(self, num_chars: int) -> float:
        """What so much work should take."""
        return self.seconds_per_char * num_chars

    def chars(self, seconds: float) -> int:
        """How much work should take so long."""
        return int(seconds / self.seconds_per_char)


def cap(texts: Sequence[str], *, max_seqlen: int, truncation: Truncation) -> tuple[Sequence[str], list[int]]:
    """Texts cut to what can matter, and the indices of those that were cut.

    Raises TextRefused (TOO_LONG) where there is one and truncation is off.
    """
    max_chars = MAX_CHARS_PER_TOKEN * max_seqlen
    long = [index for index, text in enumerate(texts) if len(text) > max_chars]
    if not long:
        return texts, long
    if truncation is Truncation.NONE:
        raise TextRefused(Refusal.TOO_LONG, long[0], max_tokens=max_seqlen)
    kept = slice(max_chars) if truncation is Truncation.RIGHT else slice(-max_chars, None)
    capped = list(texts)
    whole = part = ""
    for index in long:
        if capped[index] is not whole:  # the query of many pairs is the same text each time, and stays it
            whole = capped[index]
            part = whole[kept]
        capped[index] = part
    return capped, long


def cut(texts: Sequence[Sized], *, prompt: str, max_chars: int, pair_texts: Sequence[Sized] = ()) -> list[Span]:
    """Spans of at most `max_chars` of work each; a single text, pair or list of ids beyond that is one of its own."""
    each = len(prompt) + _TEXT_CHARS
    if len(texts) == 1:
        return [Span(0, 1, len(texts[0]) + each + sum(map(len, pair_texts)))]
    second = map(len, pair_texts) if pair_texts else repeat(0)
    ends = list(accumulate(len(text) + each + more for text, more in zip(texts, second, strict=False)))
    spans = []
    start = done = 0
    while start < len(texts):
        stop = max(bisect_right(ends, done + max_chars, start), start + 1)
        spans.append(Span(start, stop, ends[stop - 1] - done))
        start, done = stop, ends[stop - 1]
    return spans

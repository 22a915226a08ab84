"""Stretches of a text that make no token, or one whatever their length: blanks, what a normalizer removes, a word that
is too long for its model, unknown characters that become one token.

Their middle is left out where a slice has the same tokens without it, also with a letter behind it. What is left has
a few characters of each end, as added tokens look at what is next to them.
"""

from collections.abc import Callable

import numpy as np
import tokenizers

from tokenizer_pool.long_texts.scan import ScanPiece

# Characters that stay at each end of a stretch: between tokens, and of one. Models take 100 characters for a long word.
_EDGES = np.array([16, 128])
_LONG = 4 * _EDGES  # what has more is tried

_PROBE = "a"  # what may follow a slice


class Stretches:
    """Of one tokenizer."""

    def __init__(self, encode: Callable[[str], tokenizers.Encoding]) -> None:
        self._encode = encode
        self._latest: tuple[ScanPiece, str] | None = None  # a long stretch makes the same slice again and again

    def known(self, piece: ScanPiece) -> str:
        """What `shorter` has just found for such a piece, or ""."""
        return self._latest[1] if self._latest is not None and self._latest[0] == piece else ""

    def shorter(self, piece: ScanPiece, encoding: tokenizers.Encoding, *, at_least: int) -> str:
        """A text with the tokens of the piece, shorter by at least so many characters, or ""."""
        text = piece.text
        shorter = _without_middles(text, encoding, piece.num_fixed)
        if len(text) - len(shorter) < at_least:
            return ""
        if self._encode(text + _PROBE).ids != self._encode(shorter + _PROBE).ids:
            return ""
        self._latest = piece, shorter
        return shorter


def _without_middles(text: str, encoding: tokenizers.Encoding, num_fixed: int) -> str:
    """Each stretch of one token, or between two, without what is not near its ends."""
    offsets = np.array(encoding.offsets, np.int64).reshape(-1)
    ends = np.maximum.accumulate(np.concatenate(([num_fixed], offsets, [len(text)])))
    kinds = np.arange(len(ends) - 1) % 2
    places = np.flatnonzero(np.diff(ends) > _LONG[kinds])
    firsts, lasts = ends[places] + _EDGES[kinds[places]], ends[places + 1] - _EDGES[kinds[places]]
    kept = zip([0, *lasts.tolist()], [*firsts.tolist(), len(text)], strict=True)
    return "".join(text[start:stop] for start, stop in kept)

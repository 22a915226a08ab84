"""Counts the tokens of a slice that are those of the whole text, and says where the next slice may begin.

A library's tokenizer goes from left to right, and what it makes of a word depends on the word and on what stands next
to it: normalizers work on characters or on clusters of them, pre-tokenizers look a character ahead, models see one word
at a time. Only an added token reaches further, and no further than it is long, and a pattern that looks ahead; of that
other ends are tried. So the tokens of a slice hold up to
some words before its end, and from there on a slice that begins some words earlier has the same. The latter is tried
each time: a tokenizer that cuts by counts of characters is found out.

Inside of a long word, what a BPE or a Unigram model makes of its start soon stops to depend on what follows; others
may call a word unknown for its last character. There a slice is cut some dozens of tokens before its end, and it is
also tried that other ends change nothing before the cut.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import takewhile

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models

from tokenizer_pool.guarded import TextQuarantine, of_each
from tokenizer_pool.tasks import ScannedPiece, ScanPiece

# Characters that stay at each end of a stretch: between tokens, and of one. Models take 100 characters for a long word.
_EDGES = np.array([16, 128])
_LONG = 4 * _EDGES  # what has more is tried
_LOOKAHEAD = 8  # words behind a cut, besides as many as the longest added token has characters
_LEAD_IN = 8  # words before a cut that the next slice begins with; the last half of them must come out the same

# The same bounds for a cut inside of a word, in tokens.
_TOKENS_BEHIND = 64
_TOKENS_LEAD_IN = 64
_ENDINGS = 8  # as many characters are left out at the end, one after the other
_PROBE = "a"  # what may follow a slice
_SPACE = "▁"  # of SentencePiece, in tokens
_SPACE_INSIDE = re.compile(f"[^{_SPACE}]{_SPACE}")


class Scanner:
    """The scanner of one tokenizer, which neither pads nor truncates while it scans."""

    def __init__(self, backend: tokenizers.Tokenizer, quarantine: TextQuarantine | None = None) -> None:
        self._backend = backend
        self._quarantine = quarantine
        self._stretches = Stretches(self._encode)

    def scan(self, piece: ScanPiece) -> ScannedPiece:
        """Find the tokens that a piece begins with in the whole text, too. Raises TextRefused (FAILED)."""
        text, num_repeated = piece.text, piece.num_repeated
        if shorter := self._stretches.known(piece):
            return ScannedPiece(0, 0, num_repeated, shorter=shorter)
        encoding = self._encode(text)
        if piece.is_end:
            return ScannedPiece(len(encoding) - num_repeated, 0, 0)
        if self._counts_characters:
            return ScannedPiece(self._num_certain(encoding, text, num_repeated), 0, num_repeated)
        found = self._cut_between_words(encoding, text, num_repeated)
        if shorter := self._stretches.shorter(piece, encoding, at_least=len(text) // 2 if found else 1):
            return ScannedPiece(0, 0, num_repeated, shorter=shorter)
        found = found or self._cut_inside_of_a_word(encoding, piece)
        return found or ScannedPiece(self._num_certain(encoding, text, num_repeated), 0, num_repeated)

    def _cut_between_words(self, encoding: tokenizers.Encoding, text: str, num_repeated: int) -> ScannedPiece | None:
        starts = self._last_words(encoding, text)
        if len(starts) < self._num_behind + _LEAD_IN:
            return None
        cut, synced = starts[-self._num_behind], starts[-self._num_behind - _LEAD_IN // 2]
        restart = encoding.offsets[starts[-self._num_behind - _LEAD_IN]][0]
        if cut <= num_repeated or not restart:
            return None
        again = self._encode(text[restart:])
        num_again = len(again) - (len(encoding) - cut)
        if not _ends_alike(again, encoding, len(encoding) - synced):
            return None
        if self._looks_ahead and not self._holds_whatever_follows(text[restart:], again.ids[:num_again]):
            return None
        return ScannedPiece(cut - num_repeated, restart, num_again)

    def _cut_inside_of_a_word(self, encoding: tokenizers.Encoding, piece: ScanPiece) -> ScannedPiece | None:
        """Of two ways to cut a word that score the same, a Unigram model takes one by how it has rounded since the
        start of the word. So the end of a text may not begin in there."""
        num_tokens, text = len(encoding), piece.text
        cut = num_tokens - _TOKENS_BEHIND
        if not self._cuts_words or (piece.keeps_end and isinstance(self._backend.model, models.Unigram)):
            return None
        if cut <= piece.num_repeated:
            return None
        restart = _last_begin(encoding, cut - _TOKENS_LEAD_IN)
        if not restart:
            return None
        again = self._encode(text[restart:])
        if not _ends_alike(again, encoding, num_tokens - cut + _TOKENS_LEAD_IN // 2):
            return None
        num_repeated = len(again) - _TOKENS_BEHIND
        if not self._holds_whatever_follows(text[restart:], again.ids[:num_repeated]):
            return None
        return ScannedPiece(cut - piece.num_repeated, restart, num_repeated)

    def _holds_whatever_follows(self, text: str, first_ids: list[int]) -> bool:
        """Whether the text has these ids first with other ends too."""
        endings = [text[:-left_out] for left_out in range(1, _ENDINGS + 1)] + [text + _PROBE]
        return all(self._encode(each).ids[: len(first_ids)] == first_ids for each in endings)

    def _num_certain(self, encoding: tokenizers.Encoding, text: str, num_repeated: int) -> int:
        """Tokens that other ends do not change, where nothing says where the next slice could begin."""
        if len(encoding) <= num_repeated + _TOKENS_BEHIND:
            return 0
        num_same = min(_num_same(encoding.ids, self._encode(each).ids) for each in (text[:-1], text + _PROBE))
        if not self._cuts_words:
            num_same = min(num_same, int(self._words(encoding)[-1]))
        return max(num_same - _TOKENS_BEHIND - num_repeated, 0)

    def _encode(self, text: str) -> tokenizers.Encoding:
        """Encode with offsets, which encode_batch_fast leaves out."""
        encoding: tokenizers.Encoding = of_each(
            lambda texts: self._backend.encode_batch(texts, add_special_tokens=False), [text], self._quarantine
        )[0]
        return encoding

    def _last_words(self, encoding: tokenizers.Encoding, text: str) -> list[int]:
        """The first tokens of the last words, as many as a cut needs. Whitespace is no word: an added token may take
        all that is next to it."""
        wanted = self._num_behind + _LEAD_IN
        starts = self._words(encoding)
        if len(starts) < wanted:  # of a long row of the same, whose offsets would be a long list
            return []
        found: list[int] = []
        offsets, end = encoding.offsets, len(encoding)
        for start in reversed(starts.tolist()):
            if not text[offsets[start][0] : offsets[end - 1][1]].isspace():
                found.append(start)
            if len(found) == wanted:
                break
            end = start
        return found[::-1]

    def _words(self, encoding: tokenizers.Encoding) -> NDArray[np.int64]:
        """The first tokens of all words: what the pre-tokenizer makes, or a SentencePiece model without one."""
        words = np.array(encoding.word_ids, np.int64)
        begins = np.ones(len(words), np.bool_)
        begins[1:] = words[1:] != words[:-1]
        if self._splits_at_spaces:
            opens = np.array([token.startswith(_SPACE) for token in encoding.tokens], np.bool_)
            closes = np.array([token.endswith(_SPACE) for token in encoding.tokens], np.bool_)
            begins[1:] |= opens[1:] & ~closes[:-1]
        return np.flatnonzero(begins)

    @cached_property
    def _counts_characters(self) -> bool:
        """Then words begin elsewhere in each slice, which a text that repeats itself would hide."""
        return "FixedLength" in repr(self._backend.pre_tokenizer)

    @cached_property
    def _cuts_words(self) -> bool:
        return isinstance(self._backend.model, models.BPE | models.Unigram)

    @cached_property
    def _looks_ahead(self) -> bool:
        """Whether it looks ahead, as a pattern does that counts digits from the end of a number."""
        return "(?=" in repr(self._backend.pre_tokenizer) + repr(self._backend.normalizer)

    @cached_property
    def _num_behind(self) -> int:
        added = self._backend.get_added_tokens_decoder().values()
        return _LOOKAHEAD + max((len(token.content) for token in added), default=0)

    @cached_property
    def _splits_at_spaces(self) -> bool:
        """Whether no merge of a BPE goes over the end of a word, with or without a pre-tokenizer: no token has one
        inside, and the space itself is a token, so that it never becomes a part of an unknown one."""
        if not isinstance(self._backend.model, models.BPE) or self._backend.token_to_id(_SPACE) is None:
            return False
        return not any(map(_SPACE_INSIDE.search, self._backend.get_vocab(with_added_tokens=False)))


def _ends_alike(again: tokenizers.Encoding, encoding: tokenizers.Encoding, num_tokens: int) -> bool:
    return again.ids[-num_tokens:] == encoding.ids[-num_tokens:]


def _last_begin(encoding: tokenizers.Encoding, stop: int) -> int:
    """The last character before token `stop` at which a token begins that is not a part of it; where there are several
    words behind it, at which a word begins: words may be counts of characters."""
    offsets, words = encoding.offsets, encoding.word_ids
    for place in range(stop - 1, max(stop - _TOKENS_LEAD_IN, 0), -1):
        is_allowed = words[place] == words[-1] or words[place] != words[place - 1]
        if is_allowed and offsets[place][0] >= offsets[place - 1][1]:
            return offsets[place][0]
    return 0


def _num_same(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of equal ids at their starts."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


class Stretches:
    """Stretches of a text that make no token, or one whatever their length: blanks, what a normalizer removes, a word
    that is too long for its model, unknown characters that become one token.

    Their middle is left out where a slice has the same tokens without it, also with a letter behind it. What is left
    has a few characters of each end, as added tokens look at what is next to them.
    """

    def __init__(self, encode: Callable[[str], tokenizers.Encoding]) -> None:
        self._encode = encode
        self._latest: tuple[ScanPiece, str] | None = None  # a long stretch makes the same slice again and again

    def known(self, piece: ScanPiece) -> str:
        """The piece that `shorter` has just found for such a piece, or ""."""
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

"""Counts the tokens of a slice that are those of the whole text, and says where the next slice may begin.

A library's tokenizer goes from left to right, and what it makes of a word depends on the word and on what stands next
to it: normalizers work on characters or on clusters of them, pre-tokenizers look a character ahead, models see one word
at a time. Only an added token reaches further, and no further than it is long. So the tokens of a slice hold up to
some words before its end, and from there on a slice that begins some words earlier has the same. The latter is tried
each time: a tokenizer that cuts by counts of characters is found out, and then no slice of it counts before the last.
"""

import re
from functools import cached_property

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models

from tokenizer_pool.guarded import of_each
from tokenizer_pool.long_texts.scan import ScannedPiece

_LOOKAHEAD = 8  # words behind a cut, besides as many as the longest added token has characters
_LEAD_IN = 8  # words before a cut that the next slice begins with; the last half of them must come out the same

_SPACE = "▁"  # of SentencePiece, in tokens
_SPACE_INSIDE = re.compile(f"[^{_SPACE}]{_SPACE}")


class Scanner:
    """Of one tokenizer, which neither pads nor truncates while it scans."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend

    def scan(self, text: str, *, num_repeated: int, is_end: bool) -> ScannedPiece:
        """`num_repeated` tokens of the slice were counted before. Raises TextRefused (FAILED)."""
        encoding = self._encode(text)
        if is_end:
            return ScannedPiece(len(encoding) - num_repeated, 0, 0)
        starts = self._last_words(encoding, text)
        nothing = ScannedPiece(0, 0, num_repeated)
        if len(starts) < self._num_behind + _LEAD_IN:
            return nothing
        cut, synced = starts[-self._num_behind], starts[-self._num_behind - _LEAD_IN // 2]
        restart = encoding.offsets[starts[-self._num_behind - _LEAD_IN]][0]
        if cut <= num_repeated or not restart:
            return nothing
        again = self._encode(text[restart:])
        if again.ids[-(len(encoding) - synced) :] != encoding.ids[synced:]:
            return nothing
        return ScannedPiece(cut - num_repeated, restart, len(again) - (len(encoding) - cut))

    def _encode(self, text: str) -> tokenizers.Encoding:
        """With offsets, which encode_batch_fast leaves out."""
        encoding: tokenizers.Encoding = of_each(
            lambda texts: self._backend.encode_batch(texts, add_special_tokens=False), [text]
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

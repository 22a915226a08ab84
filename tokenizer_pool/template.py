"""Pairs put into the template of a generative reranker, part by part. Knows the parts; not what a model makes of them.

The reference tokenizes each part by itself, and so does this. A text of a user never becomes a special token, which
would let a document end the question and answer it; the ids of all other texts are those of the reference. Only where
the fixed text beside it in its part spells out a special token is the library told to look for them in all of it.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import tokenizers

from tokenizer_pool.files.config_files import TokenizerError
from tokenizer_pool.guarded import of_each_once
from tokenizer_pool.messages import Refusal, TextRefused, TokenizedPiece, TokenizerSpec, Truncation
from tokenizer_pool.token_ids import offsets_of

_PLACES = ("{document}", "{query}", "{instruction}")  # in the order in which parts that hold them are cut
_SPLIT = re.compile("|".join(f"({re.escape(place)})" for place in _PLACES))


@dataclass(frozen=True, slots=True)
class _Filled:
    """The tokens of a part, filled in."""

    ids: list[int]
    head: int  # tokens before those of the document; all where it is cut at its end


class _Part:
    """One part of the template."""

    def __init__(self, backend: tokenizers.Tokenizer, text: str) -> None:
        self._backend = backend
        self._pieces = [piece for piece in _SPLIT.split(text) if piece]  # places and the text between them
        self.places = [place for place in _PLACES if place in self._pieces]
        fixed = ["", *(piece for piece in self._pieces if piece not in _PLACES)]
        hidden, spelt = ([encoding.ids for encoding in self._encode(fixed, hides)] for hides in (True, False))
        self.hides_specials = bool(self.places) and hidden == spelt  # in the texts of users
        self.fixed = None if self.places else _whole(self._encode([text], False)[0])

    def fill(self, fillings: Sequence[dict[str, str]], *, truncation: Truncation) -> list[_Filled]:
        """The tokens of this part for each pair. Raises TextRefused."""
        if self.fixed is not None:
            return [self.fixed] * len(fillings)
        asks = self.places != ["{instruction}"]  # an instruction's own part is left out where there is none
        joined = ("".join(filling.get(piece, piece) for piece in self._pieces) for filling in fillings)
        texts = [text if asks or each["{instruction}"] else "" for text, each in zip(joined, fillings, strict=True)]
        if truncation is not Truncation.LEFT or "{document}" not in self.places:
            return [_whole(encoding) for encoding in self._encode(texts, self.hides_specials)]
        encodings = self._encode(texts, self.hides_specials, with_offsets=True)
        starts = map(self._start, fillings)
        return [_with_head(encoding, start) for encoding, start in zip(encodings, starts, strict=True)]

    def _start(self, filling: dict[str, str]) -> int:
        """Characters before the document."""
        before = self._pieces[: self._pieces.index("{document}")]
        return sum(len(filling.get(piece, piece)) for piece in before)

    def _encode(
        self, texts: Sequence[str], hides_specials: bool, *, with_offsets: bool = False
    ) -> list[tokenizers.Encoding]:
        backend, as_loaded = self._backend, self._backend.encode_special_tokens
        encode = backend.encode_batch if with_offsets else backend.encode_batch_fast
        backend.no_truncation()
        backend.encode_special_tokens = hides_specials or as_loaded
        try:
            return of_each_once(partial(encode, add_special_tokens=False), texts)
        finally:
            backend.encode_special_tokens = as_loaded


class Template:
    """The template of one model over its tokenizer."""

    def __init__(self, backend: tokenizers.Tokenizer, spec: TokenizerSpec) -> None:
        """Raises TokenizerError where the fixed parts leave no room for texts."""
        self._parts = [_Part(backend, text) for text in spec.template]
        self._num_fixed = sum(len(part.fixed.ids) for part in self._parts if part.fixed)
        if self._num_fixed >= spec.max_seqlen:
            raise TokenizerError(
                f"{spec.folder}: {self._num_fixed} tokens of the template leave no room in {spec.max_seqlen} tokens"
            )
        self.hides_specials = all(part.hides_specials for part in self._parts if part.places)
        by_rank = [(_PLACES.index(part.places[0]), at) for at, part in enumerate(self._parts) if part.places]
        self._cut_order = [at for _, at in sorted(by_rank)]

    def encode(
        self,
        texts: Sequence[str],
        pair_texts: Sequence[str],
        *,
        instruction: str,
        truncation: Truncation,
        max_seqlen: int,
    ) -> TokenizedPiece:
        """Ids of each pair. Where one is too long the document loses tokens, then the query, then the instruction.

        Raises TextRefused: TOO_LONG with Truncation.NONE, NO_ROOM where the fixed parts leave none, FAILED, EMPTY.
        """
        start = time.perf_counter()
        if max_seqlen <= self._num_fixed:
            raise TextRefused(Refusal.NO_ROOM, -1, num_tokens=self._num_fixed, max_tokens=max_seqlen)
        fillings = [
            {"{instruction}": instruction, "{query}": text, "{document}": pair_text}
            for text, pair_text in zip(texts, pair_texts, strict=True)
        ]
        columns = [part.fill(fillings, truncation=truncation) for part in self._parts]
        rows = []
        truncated = np.zeros(len(texts), np.uint8)
        for index, parts in enumerate(map(list, zip(*columns, strict=True))):
            num_tokens = sum(len(part.ids) for part in parts)
            if num_tokens == 0:
                raise TextRefused(Refusal.EMPTY, index)
            if num_tokens > max_seqlen:
                if truncation is Truncation.NONE:
                    raise TextRefused(Refusal.TOO_LONG, index, num_tokens=num_tokens, max_tokens=max_seqlen)
                truncated[index] = 1
                self._cut(parts, num_tokens - max_seqlen)
            rows.append(list(chain.from_iterable(part.ids for part in parts)))
        return TokenizedPiece(
            token_ids=np.fromiter(chain.from_iterable(rows), np.int32),
            offsets=offsets_of(np.fromiter(map(len, rows), np.int32, len(rows))),
            truncated=truncated,
            seconds=time.perf_counter() - start,
        )

    def _cut(self, parts: list[_Filled], excess: int) -> None:
        """Take `excess` tokens out of the parts of a pair."""
        for at in self._cut_order:
            part = parts[at]
            lost = min(excess, len(part.ids) - part.head)  # the first tokens of the document
            ids = part.ids[: part.head] + part.ids[part.head + lost :]
            excess -= lost
            kept = ids[: max(len(ids) - excess, 0)]
            excess -= len(ids) - len(kept)
            parts[at] = _Filled(kept, len(kept))


def _whole(encoding: tokenizers.Encoding) -> _Filled:
    return _Filled(encoding.ids, len(encoding))


def _with_head(encoding: tokenizers.Encoding, num_chars: int) -> _Filled:
    """The first tokens, up to so many characters, stay where the others are cut."""
    return _Filled(encoding.ids, sum(stop <= num_chars for _, stop in encoding.offsets))

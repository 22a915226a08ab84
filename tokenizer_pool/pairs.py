"""Pairs of texts to token ids: joined as a tokenizer's post-processor says, or in a generative reranker's template.

Knows how pairs are put together; not what a model makes of them.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby

import numpy as np
import tokenizers
from tokenizers import models

from tokenizer_pool.config_files import TokenizerError
from tokenizer_pool.guarded import of_each, of_each_once
from tokenizer_pool.messages import TextRefusal, TextRefused, TokenizerSpec, Truncation
from tokenizer_pool.tasks import TokenizedTexts, offsets_of
from wire.parts import Part

_PLACES = ("{document}", "{query}", "{instruction}")  # in the order in which parts that hold them are cut
_SPLIT = re.compile("|".join(f"({re.escape(place)})" for place in _PLACES))


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens of a pair that follow each other and have the same type."""

    sequence: int | None  # 0 = the tokens of the first text, 1 = of the second; None = special ones
    ids: list[int]  # the special ones
    type_id: int


class Pairs:
    """How one tokenizer puts two texts together, with the ids, types and cuts that transformers gives them.

    The library could do all of it, but where both texts are too long it makes every combination of what it cuts off the
    one and off the other, which is gigabytes for two long documents. So texts are tokenized by themselves, then cut and
    joined here. A query is then also tokenized only once for all its documents.
    """

    def __init__(self, backend: tokenizers.Tokenizer, *, has_types: bool) -> None:
        """`has_types` says whether the model takes types of tokens."""
        self._backend = backend
        self._runs = _runs(backend)
        self._num_special = sum(len(run.ids) for run in self._runs)
        self._has_types = has_types and any(run.type_id for run in self._runs)
        self._query: tuple[str, list[int]] = ("", [])  # the latest that many documents had in common, and its ids

    def encode(
        self, texts: Sequence[str], pair_texts: Sequence[str], *, prompt: str, truncation: Truncation, max_seqlen: int
    ) -> TokenizedTexts:
        """Ids of each pair, with the prompt before its first text; where it is too long the longer text is cut first.

        Raises TextRefused: TOO_LONG with Truncation.NONE, NO_ROOM where not even the special tokens fit, FAILED, EMPTY.
        """
        start = time.perf_counter()
        self._backend.no_truncation()
        encode = partial(self._backend.encode_batch_fast, add_special_tokens=False)
        firsts = self._firsts(encode, [prompt + text for text in texts])
        seconds = of_each_once(encode, pair_texts)
        token_ids: list[int] = []
        type_ids: list[int] = []
        offsets = [0]
        truncated = bytearray(len(texts))
        for index, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
            pair = (first, second.ids)
            room = max_seqlen - self._num_special
            if self._is_long(pair, index, truncation, room):
                truncated[index] = True
                pair = _cut(pair, truncation, room)
            for run in self._runs:
                ids = run.ids if run.sequence is None else pair[run.sequence]
                token_ids += ids
                if self._has_types:
                    type_ids += [run.type_id] * len(ids)
            offsets.append(len(token_ids))
        return TokenizedTexts(
            token_ids=np.array(token_ids, np.int32),
            offsets=np.array(offsets, np.int32),
            truncated=np.frombuffer(truncated, np.uint8),
            seconds=time.perf_counter() - start,
            parts={Part.TOKEN_TYPE_IDS: np.array(type_ids, np.int32)} if self._has_types else {},
        )

    def _firsts(
        self, encode: Callable[[Sequence[str]], list[tokenizers.Encoding]], texts: Sequence[str]
    ) -> list[list[int]]:
        """Ids of each. A query comes with every piece of its documents, and one that is longer than they are would be
        nearly all of the work."""
        if texts.count(texts[0]) < len(texts):
            return [encoding.ids for encoding in of_each(encode, texts)]
        if texts[0] != self._query[0]:
            self._query = texts[0], of_each(encode, texts[:1])[0].ids
        return [self._query[1]] * len(texts)

    def _is_long(self, pair: tuple[list[int], list[int]], index: int, truncation: Truncation, room: int) -> bool:
        """Whether a pair must be cut. Raises TextRefused if that is off or no help, or if there are no tokens."""
        num_special, num_tokens = self._num_special, len(pair[0]) + len(pair[1])
        if num_tokens + num_special == 0:
            raise TextRefused(TextRefusal.EMPTY, index)
        if num_tokens <= room:
            return False
        limit = room + num_special
        if truncation is Truncation.NONE:
            raise TextRefused(TextRefusal.TOO_LONG, index, max_tokens=limit)
        if room < 0:
            raise TextRefused(TextRefusal.NO_ROOM, -1, num_tokens=num_special, max_tokens=limit)
        return True


def _cut(pair: tuple[list[int], list[int]], truncation: Truncation, room: int) -> tuple[list[int], list[int]]:
    """Cut as the library's longest_first does: a text that has no more than half of the room stays whole."""
    first, second = pair
    shorter = min(len(first), len(second))
    if 2 * shorter <= room:
        longer = room - shorter
    else:
        shorter, longer = room // 2, room - room // 2
    lengths = (shorter, longer) if len(first) <= len(second) else (longer, shorter)
    return _end(first, lengths[0], truncation), _end(second, lengths[1], truncation)


def _end(ids: list[int], length: int, truncation: Truncation) -> list[int]:
    """The end of a text that stays: the first ids, or the last."""
    return ids[len(ids) - length :] if truncation is Truncation.LEFT else ids[:length]


def _runs(backend: tokenizers.Tokenizer) -> list[_Run]:
    """The runs that a pair is made of, read off a pair of one token each."""
    probe = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    if backend.post_processor is not None:
        probe.post_processor = backend.post_processor
    pair = probe.encode("a", "b")
    columns = zip(pair.sequence_ids, pair.type_ids, pair.ids, strict=True)
    return [
        _Run(sequence, [token_id for _, _, token_id in run] if sequence is None else [], type_id)
        for (sequence, type_id), run in groupby(columns, key=lambda column: column[:2])
    ]


@dataclass(frozen=True, slots=True)
class _Filled:
    """The tokens of a part, filled in."""

    ids: list[int]
    head: int  # tokens before those of the document; all where it is cut at its end


class _TemplatePart:
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
        pairs = zip(encodings, starts, strict=True)  # the first tokens, up to so many characters, stay
        return [_Filled(one.ids, sum(stop <= start for _, stop in one.offsets)) for one, start in pairs]

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
    """The template of one model over its tokenizer, filled in part by part.

    The reference tokenizes each part by itself, and so does this. A text of a user never becomes a special token, which
    would let a document end the question and answer it; the ids of all other texts are those of the reference. Only
    where the fixed text beside it in its part spells out a special token is the library told to look for them in all of
    it.
    """

    def __init__(self, backend: tokenizers.Tokenizer, spec: TokenizerSpec) -> None:
        """Raises TokenizerError where the fixed parts leave no room for texts."""
        self._parts = [_TemplatePart(backend, text) for text in spec.template]
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
    ) -> TokenizedTexts:
        """Ids of each pair. Where one is too long the document loses tokens, then the query, then the instruction.

        Raises TextRefused: TOO_LONG with Truncation.NONE, NO_ROOM where the fixed parts leave none, FAILED, EMPTY.
        """
        start = time.perf_counter()
        if max_seqlen <= self._num_fixed:
            raise TextRefused(TextRefusal.NO_ROOM, -1, num_tokens=self._num_fixed, max_tokens=max_seqlen)
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
                raise TextRefused(TextRefusal.EMPTY, index)
            if num_tokens > max_seqlen:
                if truncation is Truncation.NONE:
                    raise TextRefused(TextRefusal.TOO_LONG, index, max_tokens=max_seqlen)
                truncated[index] = 1
                self._cut(parts, num_tokens - max_seqlen)
            rows.append(list(chain.from_iterable(part.ids for part in parts)))
        return TokenizedTexts(
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

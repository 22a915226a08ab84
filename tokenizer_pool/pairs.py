"""Pairs put together as a tokenizer's post-processor says, with the ids, types and cuts that transformers gives them.

The library could do all of it, but where both texts are too long it makes every combination of what it cuts off the
one and off the other, which is gigabytes for two long documents. So texts are tokenized by themselves, then cut and
joined here. A query is then also tokenized only once for all its documents.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np
import tokenizers
from tokenizers import models

from tokenizer_pool.guarded import of_each, of_each_once
from tokenizer_pool.messages import Refusal, TextRefused, TokenizedPiece, Truncation


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens of a pair that follow each other and have the same type."""

    sequence: int | None  # 0 = the tokens of the first text, 1 = of the second; None = special ones
    ids: list[int]  # the special ones
    type_id: int


class Pairs:
    """How one tokenizer puts two texts together."""

    def __init__(self, backend: tokenizers.Tokenizer, *, has_types: bool) -> None:
        """`has_types` says whether the model takes types of tokens."""
        self._backend = backend
        self._runs = _runs(backend)
        self._num_special = sum(len(run.ids) for run in self._runs)
        self._has_types = has_types and any(run.type_id for run in self._runs)
        self._query: tuple[str, list[int]] = ("", [])  # the latest that many documents had in common, and its ids

    def encode(
        self, texts: Sequence[str], pair_texts: Sequence[str], *, prompt: str, truncation: Truncation, max_seqlen: int
    ) -> TokenizedPiece:
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
        return TokenizedPiece(
            token_ids=np.array(token_ids, np.int32),
            offsets=np.array(offsets, np.int32),
            truncated=np.frombuffer(truncated, np.uint8),
            seconds=time.perf_counter() - start,
            token_type_ids=np.array(type_ids, np.int32) if self._has_types else None,
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
            raise TextRefused(Refusal.EMPTY, index)
        if num_tokens <= room:
            return False
        limit = room + num_special
        if truncation is Truncation.NONE:
            raise TextRefused(Refusal.TOO_LONG, index, num_tokens=num_tokens + num_special, max_tokens=limit)
        if room < 0:
            raise TextRefused(Refusal.NO_ROOM, -1, num_tokens=num_special, max_tokens=limit)
        return True


def _cut(pair: tuple[list[int], list[int]], truncation: Truncation, room: int) -> tuple[list[int], list[int]]:
    """As the library's longest_first: a text that has no more than half of the room stays whole."""
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
    """What a pair is made of, read off a pair of one token each."""
    probe = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    if backend.post_processor is not None:
        probe.post_processor = backend.post_processor
    pair = probe.encode("a", "b")
    columns = zip(pair.sequence_ids, pair.type_ids, pair.ids, strict=True)
    return [
        _Run(sequence, [token_id for _, _, token_id in run] if sequence is None else [], type_id)
        for (sequence, type_id), run in groupby(columns, key=lambda column: column[:2])
    ]

"""The tokens of whole texts, apart from what stands around them, for requests that make other sequences of them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from server.requests.time_slices import TimeSlice
from server.requests.work import EmbedRequest
from tokenizer_pool.details import Token
from tokenizer_pool.token_ids import SLICE_IDS


@dataclass(frozen=True, slots=True, kw_only=True)
class InSequences(EmbedRequest):
    """A request whose texts are computed in other sequences than one for each."""

    items: list[int]  # of which item a sequence is a part, -1 = of all; filled in when the request is tokenized

    @classmethod
    def of(cls, request: EmbedRequest, **changes: Any) -> Self:
        """The same request."""
        return cls(**{field.name: getattr(request, field.name) for field in fields(EmbedRequest)} | changes, items=[])

    @property
    def max_num_tokens(self) -> int:
        """Not known before it is tokenized."""
        return sys.maxsize

    def name_of(self, index: int) -> str:
        """Of a sequence; of an item while it is not tokenized."""
        return EmbedRequest.name_of(self, self.items[index] if self.items and index >= 0 else index)


@dataclass(frozen=True, slots=True)
class Framed:
    """One text: int32 ids of what stands before it (special tokens, the prompt), of itself, and of what follows."""

    head: NDArray[np.int32]
    content: NDArray[np.int32]
    tail: NDArray[np.int32]

    @property
    def num_around(self) -> int:
        """Tokens before and after the content."""
        return len(self.head) + len(self.tail)


async def framed(texts: Sequence[Sequence[Token]], *, num_prompt_chars: int) -> list[Framed]:
    """All texts, each with so many characters of a prompt before it. Many tokens are taken in slices."""
    found, time_slice = [], TimeSlice()
    for tokens in texts:
        ids = np.empty(len(tokens), np.int32)
        for start in range(0, len(tokens), SLICE_IDS):
            part = tokens[start : start + SLICE_IDS]
            ids[start : start + len(part)] = [token.token_id for token in part]
            await time_slice.end_if_over()
        first, last = 0, len(tokens)
        while first < last and _is_before(tokens[first], num_prompt_chars):
            first += 1
        while last > first and tokens[last - 1].is_special:
            last -= 1
        found.append(Framed(ids[:first], ids[first:last], ids[last:]))
    return found


def _is_before(token: Token, num_prompt_chars: int) -> bool:
    """Whether it is a special token or the prompt's. One with a part of both is the text's."""
    return token.stop is None or 0 < num_prompt_chars >= token.stop

"""The parts of a batch beside its token ids: what each of them says, and how frames carry them from a request to an
engine.

A frame has only the parts that a request has, each behind its flag, so texts without any cost nothing.
"""

import enum
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from wire.frames import Buffer

_T = TypeVar("_T")

# Bits of a token's mark. 8 is kept for tokens that stand for an image.
PROMPT_TOKEN = 1  # pooling leaves the token out, as some models require for their prompts
EXPANSION_TOKEN = 2  # other tokens do not attend to it, as in ColBERT's queries
QUERY_TOKEN = 4  # set on all tokens of a query that is looked up in a table instead of computed


class Part(enum.IntEnum):
    """One part. The number is its flag in a frame, one bit of a byte of which BATCH has 2 and 4 for itself. Frames have
    the parts in this order: those of larger numbers first, which keeps all aligned."""

    TOKEN_TYPE_IDS = 1  # for each token: 0 or 1, as models like BERT tell the texts of a pair apart
    ADAPTERS = 8  # for each sequence: the number of the adapter that computes it, from 1; 0 = none
    # For each sequence: with how many tokens it begins as the one before it does, in ids, types, marks and adapter; not
    # all of its own. Engines may compute these once. 0 for the first of a slice.
    SHARED = 32
    MARKS = 16  # for each token: the bits above

    @property
    def field(self) -> str:
        """The field of a batch that has its values."""
        return self.name.lower()


DTYPES: Mapping[Part, np.dtype[Any]] = {
    Part.TOKEN_TYPE_IDS: np.dtype(np.int32),
    Part.ADAPTERS: np.dtype(np.int32),
    Part.MARKS: np.dtype(np.uint8),
    Part.SHARED: np.dtype(np.int32),
}
OF_SEQUENCES = {Part.ADAPTERS, Part.SHARED}  # the others are of tokens
Parts = Mapping[Part, Buffer]  # those that a request has; what is not there is all zero
_PARTS = tuple(Part)  # walking an enum takes long


def size_of(part: Part, num_seqs: int, num_tokens: int) -> int:
    """The bytes of a part of so many sequences, which have so many tokens together."""
    return DTYPES[part].itemsize * (num_seqs if part in OF_SEQUENCES else num_tokens)


def cut(parts: Parts, start: tuple[int, int], stop: tuple[int, int]) -> dict[Part, Buffer]:
    """The parts of some sequences, as views; so many sequences and tokens are before `start`, and before `stop`."""
    return {part: memoryview(parts[part])[size_of(part, *start) : size_of(part, *stop)] for part in parts}


def in_order(parts: Mapping[Part, _T]) -> list[_T]:
    """The parts as a frame has them, one after another."""
    return [parts[part] for part in _PARTS if part in parts]


def taken_apart(payload: memoryview, flags: int, num_seqs: int, num_tokens: int) -> dict[Part, Buffer]:
    """The inverse of `in_order`; other flags of the frame are passed over. Raises ValueError where bytes are missing or
    left over.
    """
    found, at = dict[Part, Buffer](), 0
    for part in _PARTS:
        if flags & part:
            start, at = at, at + size_of(part, num_seqs, num_tokens)
            found[part] = payload[start:at]
    if at != len(payload):
        raise ValueError(f"the parts of a batch have {len(payload)} bytes instead of {at}")
    return found

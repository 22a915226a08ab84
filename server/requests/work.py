"""The types that decoders ask for and encoders get: requests for rows, tokens or texts, and the rows that were
computed."""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field

import numpy as np
from numpy.typing import NDArray

from engine.types import OutputKind, Results
from server.requests.errors import RequestError
from server.requests.models import ServedModel
from server.requests.row_memory import RequestContext
from tokenizer_pool.messages import Truncation
from tokenizer_pool.tasks import Chat
from tokenizer_pool.token_ids import TokenizedTexts
from wire.vocabulary import RequestClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The fields that all requests have in common."""

    model: ServedModel
    request_class: RequestClass | None = None  # what the client calls it; None = nothing
    deadline: float = math.inf  # time.monotonic() seconds
    field: str  # the dialect's name of the items, for error messages
    first_field: str = ""  # its name of the first items, if those are not in `field`
    num_first: int = 1  # how many they are
    context: RequestContext = dataclass_field(compare=False)  # of its call: its key, and what it holds
    is_single: bool = False  # whether the field holds one item, not a list

    @property
    def num_items(self) -> int:
        """The number of texts or lists of ids."""
        raise NotImplementedError

    def name_of(self, index: int) -> str:
        """The name of an item in an error message; all of them if the index is -1."""
        if self.first_field and 0 <= index < self.num_first:
            return self.first_field if self.num_first == 1 else f"{self.first_field}[{index}]"
        num_before = self.num_first if self.first_field else 0
        return self.field if index < 0 or self.is_single else f"{self.field}[{index - num_before}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Request):
    """A request for rows that an engine computes. Where texts and token_ids are given, each item has one and the other
    is empty."""

    texts: Sequence[str] | None = None
    pair_texts: Sequence[str] = ()  # as many second texts, for pairs
    token_ids: Sequence[Sequence[int]] | None = None
    prompt: str = ""  # put before each text, not before ids; for pairs in a template, the instruction
    num_queries: int = 0  # the first texts, so many, are queries; the others are documents
    query_prompt: str = ""  # put before queries instead of `prompt`
    adapter: int = 0  # which of the model's adapters computes the texts: see server.requests.prompts
    query_adapter: int = 0  # the same of queries
    chat: Chat | None = None  # `texts` are conversations, as tokenizer_pool.tasks has them; None = they are texts
    truncation: Truncation = Truncation.RIGHT
    max_tokens: int | None = None  # of each text, pair or list of ids; None = as many as the model takes
    add_special_tokens: bool = True  # to texts; never to pairs or ids
    outputs: OutputKind = OutputKind.POOLED  # one kind or several
    field: str = "input"

    @property
    def max_seqlen(self) -> int:
        """The most tokens of each item, special ones included."""
        own = self.model.max_seqlen
        return own if self.max_tokens is None else min(self.max_tokens, own)

    @property
    def max_num_tokens(self) -> int:
        """The most tokens of all items together."""
        return self.num_items * self.max_seqlen

    @property
    def num_characters(self) -> int:
        """The characters of all texts, without what goes before them."""
        return sum(map(len, self.texts or ())) + sum(map(len, self.pair_texts))

    @property
    def num_items(self) -> int:
        """The number of texts, pairs or lists of ids."""
        return len(self.texts if self.texts is not None else self.token_ids or ())


class Chunking(enum.Enum):
    """The ways in which sequences are made of texts."""

    NONE = "one of each, cut where it is too long"
    WINDOWS = "of a text that is too long several, of which the rows are averaged"
    LATE = "one of all, in which each text is a chunk"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest(Work):
    """An embedding request. `outputs` is POOLED, TOKENS or SPARSE."""

    dimensions: int | None = None  # of each row in the answer; None = as many as the model gives by itself
    normalize: bool | None = None  # None = as the model does with pooled rows, and not for token rows
    allows_errors: bool = False  # whether an item that can't be embedded fails alone; for POOLED and TOKENS
    chunking: Chunking = Chunking.NONE  # other than NONE only for texts, with POOLED and without allows_errors

    @property
    def width(self) -> int | None:
        """The numbers that are kept of each row; None = all."""
        if self.dimensions is not None or self.model.truncate_dim is None:
            return self.dimensions
        return self.model.truncate_dim if OutputKind.POOLED in self.outputs else None

    @property
    def ranges(self) -> NDArray[np.float32] | None:
        """The model's ranges for int8, which are of rows of the length that the model gives them; None for others."""
        return self.model.ranges if self.normalize in (None, self.model.normalize) else None


def no_rows(request: EmbedRequest) -> "Embedded":
    """The answer to a request without texts."""
    width = request.width or request.model.dimensions
    return Embedded(np.empty((0, width), np.float32), 0, np.empty(0, np.uint8))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest(Request):
    """A request for the tokens of texts, at least one."""

    texts: Sequence[str]
    prompt: str = ""  # put before each text
    add_special_tokens: bool = True
    chat: Chat | None = None  # as in Work
    field: str = "inputs"

    @property
    def num_items(self) -> int:
        """The number of texts."""
        return len(self.texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRequest(Request):
    """Lists of ids whose texts are wanted, at least one list."""

    token_ids: Sequence[Sequence[int]]
    skip_special_tokens: bool = True
    field: str = "ids"

    @property
    def num_items(self) -> int:
        """The number of lists of ids."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Computed:
    """The rows that were computed, as the engine gave it."""

    results: Results  # one entry for each single flag in Work.outputs
    tokens: TokenizedTexts

    @property
    def num_tokens(self) -> int:
        """The tokens of all items."""
        return len(self.tokens.token_ids)


@dataclass(frozen=True, slots=True)
class Embedded:
    """The finished rows of a request."""

    rows: NDArray[np.float32]  # [items, dimensions]; token rows: [num_tokens, dimensions]
    num_tokens: int
    truncated: NDArray[np.uint8]  # [items], 1 where tokens were cut off
    offsets: NDArray[np.int32] | None = None  # token rows: [items + 1], item i has rows[offsets[i] : offsets[i + 1]]
    # items with a row of zeros, or no rows of tokens; None = none may fail alone
    failed: Mapping[int, RequestError] | None = None

    @property
    def num_truncated(self) -> int:
        """The number of items that lost tokens."""
        return self.truncated.tobytes().count(1)  # a tenth of the time of numpy's sum for one item

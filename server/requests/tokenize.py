"""Texts to tokens and ids to texts, for the dialects that show them. Goes to the tokenizer pool and no further."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from server.requests.errors import DeadlineExceeded, InvalidRequest, NotTokenizable, RequestError
from server.requests.models import ServedModel
from server.requests.trace import Trace
from tokenizer_pool.client import TokenizerPool
from tokenizer_pool.details import Token
from tokenizer_pool.messages import Refusal, TextRefused
from tokenizer_pool.pieces import MAX_CHARS_PER_TOKEN
from wire.vocabulary import RequestClass

BULK_ITEMS = 8  # a request of more items, or of more tokens, is bulk unless it says otherwise
BULK_TOKENS = 4096

_CHARS_PER_TOKEN = 4  # about


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What both have in common."""

    model: ServedModel
    field: str  # what the dialect calls the items, for error messages
    request_class: RequestClass | None = None  # None = by size
    deadline: float = math.inf  # time.monotonic() seconds
    is_single: bool = False  # whether the field holds one item, not a list of them

    def name_of(self, index: int) -> str:
        """What an error message calls an item; all of them where the index is -1."""
        return self.field if index < 0 or self.is_single else f"{self.field}[{index}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest(_Request):
    """Texts whose tokens are wanted, at least one."""

    texts: Sequence[str]
    prompt: str = ""  # put before each text
    add_special_tokens: bool = True
    field: str = "inputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRequest(_Request):
    """Lists of ids whose texts are wanted, at least one list."""

    token_ids: Sequence[Sequence[int]]
    skip_special_tokens: bool = True
    field: str = "ids"


class Tokens:
    """What the tokenizer pool does besides ids. Both methods raise RequestError; cancelling them drops the work."""

    def __init__(self, pool: TokenizerPool) -> None:
        self._pool = pool

    async def tokenize(self, request: TokenizeRequest, trace: Trace) -> list[list[Token]]:
        """The tokens of each text, none cut off."""
        trace.num_characters = sum(map(len, request.texts))
        num_tokens = trace.num_characters // _CHARS_PER_TOKEN
        request_class = _begin(request, trace, num_items=len(request.texts), num_tokens=num_tokens)
        async with _asking(request, trace):
            tokens = await self._pool.tokenize_details(
                request.texts,
                model=request.model.index,
                request_class=request_class,
                add_special_tokens=request.add_special_tokens,
                prompt=request.prompt,
            )
        trace.num_tokens = sum(map(len, tokens))
        return tokens

    async def decode(self, request: DecodeRequest, trace: Trace) -> list[str]:
        """The text of each list of ids."""
        trace.num_tokens = sum(map(len, request.token_ids))
        request_class = _begin(request, trace, num_items=len(request.token_ids), num_tokens=trace.num_tokens)
        async with _asking(request, trace):
            return await self._pool.decode(
                request.token_ids,
                model=request.model.index,
                request_class=request_class,
                skip_special_tokens=request.skip_special_tokens,
            )


def _begin(request: _Request, trace: Trace, *, num_items: int, num_tokens: int) -> RequestClass:
    """Note what is known, and choose the class: what the request says, else by its size."""
    is_bulk = num_items > BULK_ITEMS or num_tokens > BULK_TOKENS
    by_size = RequestClass.BULK if is_bulk else RequestClass.INTERACTIVE
    request_class = by_size if request.request_class is None else request.request_class
    trace.model, trace.num_items, trace.is_single = request.model.name, num_items, request.is_single
    trace.request_class = request_class.name.lower()
    return request_class


@asynccontextmanager
async def _asking(request: _Request, trace: Trace) -> AsyncIterator[None]:
    """Around the question to the pool: its time, its deadline, its refusals as RequestErrors."""
    trace.stage, began = "tokenize", time.perf_counter()
    try:
        async with asyncio.timeout_at(None if request.deadline == math.inf else request.deadline):
            yield
    except TimeoutError:
        raise DeadlineExceeded("the request's own deadline passed") from None
    except TextRefused as refused:
        raise _error(refused, request) from None
    trace.stage, trace.responds_since = "respond", time.perf_counter()
    trace.tokenize_seconds = trace.responds_since - began


def _error(refused: TextRefused, request: _Request) -> RequestError:
    param = request.name_of(refused.index)
    match refused.reason:
        case Refusal.TOO_LONG:
            problem = f"has more than {MAX_CHARS_PER_TOKEN * refused.max_tokens} characters"
        case Refusal.TOO_MUCH:
            problem = "is too large for one request; send fewer items a request"
        case Refusal.OUT_OF_VOCABULARY:
            problem = "has an id that the tokenizer has no token for"
        case Refusal.FAILED | Refusal.EMPTY:
            verb = "tokenized" if isinstance(request, TokenizeRequest) else "decoded"
            return NotTokenizable(f"{param} can't be {verb}", param=param)
    return InvalidRequest(f"{param} {problem}", param=param)

"""A request's items before they are tokenized: token ids in place of texts, and items of two kinds in one request.

What becomes of token ids --token-ids says. Ids of another tokenizer give rows of nonsense, and LangChain's
OpenAIEmbeddings sends those of tiktoken by default. A model's own ids are told from others by the special tokens that
its tokenizer puts around every text.

Pairs beside texts alone, and token ids beside texts, are tokenized in two groups, which are put together again.
"""

import enum
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from server.requests.errors import EmptyInput, InvalidRequest
from server.requests.time_slices import TimeSlice
from server.requests.trace import Trace
from server.requests.work import EmbedRequest, Work
from tokenizer_pool.cl100k import text_of
from tokenizer_pool.client import TokenizerPool
from tokenizer_pool.messages import TextRefused, Truncation
from tokenizer_pool.shortening import MAX_TEXT_BYTES
from tokenizer_pool.tasks import Token
from tokenizer_pool.token_ids import TokenizedTexts, offsets_of
from wire.vocabulary import RequestClass

_Work = TypeVar("_Work", bound=Work)
Group = tuple[Sequence[int], Work]  # places in the whole request, and a request for these items alone
LETTER = "a"  # a text of which the frame is asked
_BOTH_FIXES = (
    "Send texts (with LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False), or start the server with "
    "--token-ids cl100k"
)


class TokenIds(enum.StrEnum):
    """The things that a server does with token ids."""

    NATIVE = "native"  # takes those that are framed by the model's special tokens
    CL100K = "cl100k"  # takes them for OpenAI's, and makes texts of them
    ANY = "any"  # takes all for the model's own
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Frame:
    """The special tokens before and after every text; models without any have none."""

    first: list[int]
    last: list[int]

    def fits(self, token_ids: Sequence[int]) -> bool:
        """Whether the ids fit, also where there are none, which are refused later."""
        num_last = len(self.last)
        begins = list(token_ids[: len(self.first)]) == self.first
        return not token_ids or (begins and (not num_last or list(token_ids[-num_last:]) == self.last))


def frame_of(tokens: Sequence[Token]) -> Frame:
    """The tokens around a text with these tokens."""
    inner = [place for place, token in enumerate(tokens) if not token.is_special]
    ids = [token.token_id for token in tokens]
    return Frame(ids[: inner[0]], ids[inner[-1] + 1 :]) if inner else Frame([], [])


class Frames:
    """The frame of each model, which its tokenizer is asked for once."""

    def __init__(self, tokenizers: TokenizerPool) -> None:
        self._tokenizers = tokenizers
        self._frames: dict[int, Frame] = {}  # by the model's number

    async def of(self, model: int) -> Frame:
        """One without tokens, which all ids fit, where the vocabulary has no letter to ask with."""
        if model not in self._frames:
            try:
                (tokens,) = await self._tokenizers.tokenize_details(
                    [LETTER], model=model, request_class=RequestClass.INTERACTIVE
                )
            except TextRefused:
                tokens = []
            self._frames[model] = frame_of(tokens)
        return self._frames[model]


class GivenIds:
    """Checks or translates the ids of requests."""

    def __init__(self, rule: TokenIds, tokenizers: TokenizerPool, vocabulary: Mapping[int, bytes] | None) -> None:
        """`vocabulary` is needed for CL100K alone."""
        self._rule = rule
        self._frames = Frames(tokenizers)
        self._vocabulary = vocabulary

    async def taken(self, request: _Work, trace: Trace) -> _Work:
        """The request that is computed instead of one with ids. Raises InvalidRequest and EmptyInput."""
        match self._rule:
            case TokenIds.REJECT:
                raise InvalidRequest(
                    f"{request.field} must be texts: this server takes no token ids (--token-ids)", param=request.field
                )
            case TokenIds.NATIVE:
                await self._check(request)
            case TokenIds.CL100K:
                trace.are_ids_decoded = True
                return await self._decoded(request)
            case TokenIds.ANY:
                pass
        return request

    async def _check(self, request: Work) -> None:
        frame = await self._frames.of(request.model.index)
        for index, token_ids in enumerate(request.token_ids or ()):
            if not frame.fits(token_ids):
                name = request.name_of(index)
                raise InvalidRequest(
                    f"{name} has ids without the special tokens that this model's tokenizer puts around a text, so "
                    f"they are likely another tokenizer's. {_BOTH_FIXES}",
                    param=name,
                )

    async def _decoded(self, request: _Work) -> _Work:
        assert self._vocabulary is not None, "there is no start without it"
        given = request.token_ids or ()
        texts, time_slice = list(request.texts or [""] * len(given)), TimeSlice()
        for index, token_ids in enumerate(given):
            if texts[index]:
                continue
            if not token_ids and isinstance(request, EmbedRequest) and request.allows_errors:
                continue  # it fails alone, as an empty text
            if not token_ids:
                raise EmptyInput(f"{request.name_of(index)} has no tokens", param=request.name_of(index))
            try:
                texts[index] = text_of(
                    self._vocabulary,
                    token_ids,
                    max_bytes=MAX_TEXT_BYTES,
                    keeps_end=request.truncation is Truncation.LEFT,
                )
            except KeyError:
                name = request.name_of(index)
                raise InvalidRequest(f"{name} has an id that is not one of cl100k_base", param=name) from None
            await time_slice.end_if_over()
        return replace(request, texts=texts, token_ids=None)


def texts_and_ids(request: Work) -> list[Group]:
    """The texts of a request that has both, and the lists of ids."""
    texts, token_ids = request.texts or (), request.token_ids or ()
    with_text = [index for index, text in enumerate(texts) if text]
    with_ids = [index for index, text in enumerate(texts) if not text]
    return [
        (with_text, replace(_sized(request, with_text), texts=[texts[index] for index in with_text], token_ids=None)),
        (with_ids, replace(_sized(request, with_ids), texts=None, token_ids=[token_ids[index] for index in with_ids])),
    ]


def texts_and_pairs(request: Work, without_partner: Collection[int]) -> list[Group]:
    """The texts alone of a request that has both, at these places, and the pairs."""
    texts, pair_texts = request.texts or (), request.pair_texts
    alone = sorted(without_partner)
    paired = [index for index in range(len(texts)) if index not in without_partner]
    return [
        (alone, replace(request, texts=[texts[index] for index in alone], pair_texts=())),
        (
            paired,
            replace(
                request,
                texts=[texts[index] for index in paired],
                pair_texts=[pair_texts[index] for index in paired],
            ),
        ),
    ]


async def tokenized(
    groups: Sequence[Group], num_items: int, tokenize: Callable[[Work], Awaitable[TokenizedTexts]]
) -> TokenizedTexts:
    """Make token ids, in the order of the request. Raises TextRefused with the index in the request."""
    parts = []
    for places, part in groups:
        try:
            parts.append((places, await tokenize(part)))
        except TextRefused as refused:
            raise refused.moved(places) from None
    return _merged(parts, num_items)


def _sized(request: Work, places: Sequence[int]) -> Work:
    """A request is of queries or of documents, never of both, where it has ids."""
    return replace(request, num_queries=len(places) if request.num_queries else 0)


def _merged(parts: Sequence[tuple[Sequence[int], TokenizedTexts]], num_texts: int) -> TokenizedTexts:
    """Join several into one; each comes with the places of its texts."""
    ids: list[NDArray[np.int32]] = [np.zeros(0, np.int32)] * num_texts
    types = list(ids)
    truncated = np.zeros(num_texts, np.uint8)
    for places, part in parts:
        of_part = np.zeros_like(part.token_ids) if part.token_type_ids is None else part.token_type_ids
        for place, (start, stop) in zip(places, pairwise(part.offsets.tolist()), strict=True):
            ids[place], types[place] = part.token_ids[start:stop], of_part[start:stop]
        truncated[places] = part.truncated
    all_types = np.concatenate(types)
    return TokenizedTexts(
        np.concatenate(ids),
        offsets_of(np.array([len(each) for each in ids])),
        truncated,
        all_types if all_types.any() else None,
    )

"""Token ids in place of texts: whether a request's ids are the model's own, are made texts, or are refused.

--token-ids says what becomes of token ids. Ids of another tokenizer give rows of nonsense, and LangChain's
OpenAIEmbeddings sends those of tiktoken by default. A model's own ids are told from others by the special tokens that
its tokenizer puts around every text.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from server.requests.errors import EmptyInput, InvalidRequest
from server.requests.limits import TimeSlice
from server.requests.work import EmbedRequest, Trace, Work
from tokenizer_pool.cl100k import text_of
from tokenizer_pool.client import TokenizerPool
from tokenizer_pool.messages import TextRefused, Truncation
from tokenizer_pool.shortening import MAX_TEXT_BYTES
from tokenizer_pool.tasks import Token
from wire.vocabulary import RequestClass

_Work = TypeVar("_Work", bound=Work)
LETTER = "a"  # a text that is tokenized to see the tokens around it
_BOTH_FIXES = (
    "Send texts (with LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False), or start the server with "
    "--token-ids cl100k"
)


class TokenIdsRule(enum.StrEnum):
    """The things that a server does with token ids."""

    NATIVE = "native"  # takes those that are framed by the model's special tokens
    CL100K = "cl100k"  # takes them for OpenAI's, and makes texts of them
    ANY = "any"  # takes all for the model's own
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class SurroundingIds:
    """The special tokens before and after every text; models without any have none."""

    before: list[int]
    after: list[int]

    def fits(self, token_ids: Sequence[int]) -> bool:
        """Whether the ids fit, also where there are none, which are refused later."""
        num_after = len(self.after)
        begins = list(token_ids[: len(self.before)]) == self.before
        return not token_ids or (begins and (not num_after or list(token_ids[-num_after:]) == self.after))


def surrounding_ids(tokens: Sequence[Token]) -> SurroundingIds:
    """The tokens around a text with these tokens."""
    inner = [place for place, token in enumerate(tokens) if not token.is_special]
    ids = [token.token_id for token in tokens]
    return SurroundingIds(ids[: inner[0]], ids[inner[-1] + 1 :]) if inner else SurroundingIds([], [])


class KnownSurroundingIds:
    """The special tokens around the texts of each model, which its tokenizer is asked for once."""

    def __init__(self, tokenizers: TokenizerPool) -> None:
        self._tokenizers = tokenizers
        self._known: dict[int, SurroundingIds] = {}  # by the model's number

    async def of(self, model: int) -> SurroundingIds:
        """The special tokens around a text; none, which all ids fit, where the vocabulary lacks even the letter that is
        asked with."""
        if model not in self._known:
            try:
                (tokens,) = await self._tokenizers.tokenize_details(
                    [LETTER], model=model, request_class=RequestClass.INTERACTIVE
                )
            except TextRefused:
                tokens = []
            self._known[model] = surrounding_ids(tokens)
        return self._known[model]


class GivenIds:
    """Checks or translates the ids of requests."""

    def __init__(self, rule: TokenIdsRule, vocabulary: Mapping[int, bytes] | None) -> None:
        """`vocabulary` is needed for CL100K alone."""
        self._rule = rule
        self._vocabulary = vocabulary

    async def taken(self, request: _Work, trace: Trace, surroundings: KnownSurroundingIds) -> _Work:
        """The request that is computed instead of one with ids. Raises InvalidRequest and EmptyInput."""
        match self._rule:
            case TokenIdsRule.REJECT:
                raise InvalidRequest(
                    f"{request.field} must be texts: this server takes no token ids (--token-ids)", param=request.field
                )
            case TokenIdsRule.NATIVE:
                _check_surroundings(request, await surroundings.of(request.model.index))
            case TokenIdsRule.CL100K:
                trace.are_ids_decoded = True
                return await self._decoded(request)
            case TokenIdsRule.ANY:
                pass
        return request

    async def _decoded(self, request: _Work) -> _Work:
        assert self._vocabulary is not None, "there is no start without it"
        items, time_slice = list(request.items), TimeSlice()
        for index, token_ids in enumerate(items):
            if not isinstance(token_ids, list):
                continue
            if not token_ids and isinstance(request, EmbedRequest) and request.allows_errors:
                continue  # it fails alone
            if not token_ids:
                raise EmptyInput(f"{request.name_of(index)} has no tokens", param=request.name_of(index))
            try:
                items[index] = text_of(
                    self._vocabulary,
                    token_ids,
                    max_bytes=MAX_TEXT_BYTES,
                    keeps_end=request.truncation is Truncation.LEFT,
                )
            except KeyError:
                name = request.name_of(index)
                raise InvalidRequest(f"{name} has an id that is not one of cl100k_base", param=name) from None
            await time_slice.end_if_over()
        return replace(request, items=items)


def _check_surroundings(request: Work, known: SurroundingIds) -> None:
    for index, token_ids in enumerate(request.items):
        if isinstance(token_ids, list) and not known.fits(token_ids):
            name = request.name_of(index)
            raise InvalidRequest(
                f"{name} has ids without the special tokens that this model's tokenizer puts around a text, so "
                f"they are likely another tokenizer's. {_BOTH_FIXES}",
                param=name,
            )

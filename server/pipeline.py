"""The way of a request through the house: admit, tokenize, batch, finish. One method to read for all of it.

Knows texts, ids and rows; nothing of HTTP, JSON or any dialect.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batch_manager import messages as batching
from batch_manager.client import BatchManagers
from batch_manager.messages import RequestRefused, Submission
from engine.types import OutputKind
from server.admission import Admission
from server.errors import DeadlineExceeded, EngineFailed, InvalidRequest, NotReady, RequestError
from server.models import ServedModel
from tokenizer_pool import messages as tokenizing
from tokenizer_pool.client import TokenizerPool
from tokenizer_pool.messages import TextRefused, Truncation
from tokenizer_pool.token_ids import TokenizedTexts, check_token_ids
from wire.vocabulary import RequestClass

BULK_ITEMS = 8  # a request of more items, or of more tokens, is bulk unless it says otherwise
BULK_TOKENS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """What every dialect's decoder makes of an embedding request. Either texts or token_ids is given."""

    model: ServedModel
    texts: Sequence[str] | None = None
    token_ids: Sequence[Sequence[int]] | None = None
    prompt: str = ""  # put before each text, not before ids
    truncation: Truncation = Truncation.RIGHT
    dimensions: int | None = None  # of each row handed out; None = the model's own
    normalize: bool | None = None  # None = as the model does
    request_class: RequestClass | None = None  # None = by size
    deadline: float = math.inf  # time.monotonic() seconds
    field: str = "input"  # what the dialect calls the texts, for error messages
    is_single: bool = False  # whether the field holds one text or one list of ids, not a list of them

    @property
    def num_items(self) -> int:
        """Texts or lists of ids."""
        return len(self.texts if self.texts is not None else self.token_ids or ())

    def name_of(self, index: int) -> str:
        """What an error message calls an item; all of them where the index is -1."""
        return self.field if index < 0 or self.is_single else f"{self.field}[{index}]"


@dataclass(frozen=True, slots=True)
class Embedded:
    """What every dialect's encoder starts from."""

    rows: NDArray[np.float32]  # [items, dimensions], finished
    num_tokens: int
    truncated: NDArray[np.uint8]  # [items], 1 where tokens were cut off

    @property
    def num_truncated(self) -> int:
        """Items that lost tokens."""
        return self.truncated.tobytes().count(1)  # a tenth of what numpy's sum takes for one item


class Pipeline:
    """Carries requests through the tokenizer pool and the batch managers."""

    def __init__(self, admission: Admission, tokenizers: TokenizerPool, managers: BatchManagers) -> None:
        self._admission = admission
        self._tokenizers = tokenizers
        self._managers = managers

    async def embed(self, request: EmbedRequest) -> Embedded:
        """Rows for a request. Raises RequestError; cancelling it drops the work everywhere."""
        if request.deadline == math.inf:
            return await self._embed(request)
        try:
            async with asyncio.timeout_at(request.deadline):
                return await self._embed(request)
        except TimeoutError:
            raise DeadlineExceeded("the request's own deadline passed") from None

    async def _embed(self, request: EmbedRequest) -> Embedded:
        model = request.model
        num_tokens, request_class = self._classify(request)
        self._admission.check(model.index, request_class)
        try:
            with self._admission.reserved(model.index, request_class, num_tokens):
                tokens = await self._tokenize(request, request_class)
            seqlens = np.diff(tokens.offsets).tolist() if request.num_items > 1 else [len(tokens.token_ids)]
            answer = await self._managers.submit(
                Submission(
                    model=model.index,
                    request_class=request_class,
                    outputs=OutputKind.POOLED,
                    deadline=request.deadline,
                    seqlens=seqlens,
                    token_ids=tokens.token_ids.data.cast("B"),
                )
            )
        except TextRefused as refused:
            raise _text_error(refused, request) from None
        except RequestRefused as refused:
            raise _batch_error(refused, request) from None
        rows = _finish(answer.results[OutputKind.POOLED].values, request)
        return Embedded(rows, len(tokens.token_ids), tokens.truncated)

    def _classify(self, request: EmbedRequest) -> tuple[int, RequestClass]:
        """Estimated tokens, and the class: what the request says, else by its size."""
        if request.texts is not None:
            num_characters = sum(map(len, request.texts))
            num_tokens = self._admission.estimate(request.model.index, num_characters, len(request.texts))
        else:
            num_tokens = sum(map(len, request.token_ids or ()))
        num_tokens = min(num_tokens, request.num_items * request.model.max_seqlen)
        if request.request_class is not None:
            return num_tokens, request.request_class
        is_bulk = request.num_items > BULK_ITEMS or num_tokens > BULK_TOKENS
        return num_tokens, RequestClass.BULK if is_bulk else RequestClass.INTERACTIVE

    async def _tokenize(self, request: EmbedRequest, request_class: RequestClass) -> TokenizedTexts:
        model = request.model
        if request.texts is None:
            return await check_token_ids(
                request.token_ids or (),
                vocab_size=model.vocab_size,
                max_seqlen=model.max_seqlen,
                truncation=request.truncation,
            )
        tokens = await self._tokenizers.tokenize(
            request.texts,
            model=model.index,
            request_class=request_class,
            truncation=request.truncation,
            prompt=request.prompt,
        )
        if not tokens.truncated.any():
            self._admission.learn(model.index, sum(map(len, request.texts)), len(tokens.token_ids))
        return tokens


def _finish(rows: NDArray[np.float32], request: EmbedRequest) -> NDArray[np.float32]:
    """Cut to the wished dimensions, then scale to length 1 where the model does: in this order, or the
    cut rows would be shorter than 1."""
    if request.dimensions is not None and request.dimensions < rows.shape[1]:
        rows = rows[:, : request.dimensions]
    if request.model.normalize if request.normalize is None else request.normalize:
        norms = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float32))
        # torch's normalize has the same floor, so a row of zeros stays zero
        rows = rows / np.maximum(norms, np.float32(1e-12))[:, None]
    return rows


def _text_error(refused: TextRefused, request: EmbedRequest) -> RequestError:
    param = request.name_of(refused.index)
    match refused.reason:
        case tokenizing.Refusal.TOO_LONG:
            limit = f"{refused.max_tokens} tokens" if refused.max_tokens else "the model's limit"
            problem = f"is longer than {limit} and truncation is off"
        case tokenizing.Refusal.EMPTY:
            problem = "has no tokens"
        case tokenizing.Refusal.OUT_OF_VOCABULARY:
            problem = f"has a token id that is not from 0 to {request.model.vocab_size - 1}"
        case tokenizing.Refusal.FAILED:
            problem = "can't be tokenized"
    return InvalidRequest(f"{param} {problem}", param=param)


def _batch_error(refused: RequestRefused, request: EmbedRequest) -> RequestError:
    param = request.name_of(refused.index) if refused.index >= 0 else None
    where = param or "the request"
    match refused.reason:
        case batching.Refusal.DEADLINE:
            return DeadlineExceeded("the request's own deadline passed while it waited")
        case batching.Refusal.NO_ENGINE:
            return NotReady("no engine is ready", retry_after=refused.retry_after or 1.0)
        case batching.Refusal.STOPPING:
            return NotReady("the server is stopping", retry_after=1.0)
        case batching.Refusal.TOO_LONG:
            return InvalidRequest(f"{where} is longer than the engine takes", param=param)
        case batching.Refusal.ANSWER_TOO_LARGE:
            return InvalidRequest("the answer would be too large; send fewer inputs a request")
        case batching.Refusal.NON_FINITE:
            return EngineFailed(f"the model gives numbers that are not finite for {where}", param=param)
        case _:
            return EngineFailed(f"the engine failed on {where}", param=param)

"""The way of a request through the house: admit, tokenize, batch, finish. One method to read for all of it.

Knows texts, ids and rows; nothing of HTTP, JSON or any dialect.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from batch_manager.client import BatchManagers
from batch_manager.messages import RequestRefused, Submission
from engine.types import ROWS_OF_TOKENS, OutputKind, Results
from server.requests.admission import Admission
from server.requests.errors import DeadlineExceeded, InvalidRequest, UnsupportedTask
from server.requests.late_tokens import shaped
from server.requests.models import ServedModel
from server.requests.query_tokens import as_queries
from server.requests.refusals import TOO_LARGE, batch_error, text_error
from server.requests.tokenize import BULK_ITEMS, BULK_TOKENS, Tokens
from server.requests.trace import Trace
from tokenizer_pool.client import TokenizerPool
from tokenizer_pool.messages import TextRefused, Truncation
from tokenizer_pool.token_ids import TokenizedTexts, check_token_ids, join
from wire.vocabulary import RequestClass

MAX_TOKEN_ROW_BYTES = 1 << 28  # of a request's token rows; as JSON they are five times that
MAX_SPARSE_ROW_BYTES = 1 << 28  # of a request's sparse rows; as JSON they are four times that
MAX_COMPARISONS = 1 << 34  # products of two numbers that comparing token rows takes: about a second of a frontend

_SCORES = OutputKind.LOGITS | OutputKind.TOKEN_LOGITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be computed, whatever is made of it then. Either texts or token_ids is given."""

    model: ServedModel
    texts: Sequence[str] | None = None
    pair_texts: Sequence[str] = ()  # as many second texts, where pairs are to be computed
    token_ids: Sequence[Sequence[int]] | None = None
    prompt: str = ""  # put before each text, not before ids; of pairs for a template, the instruction
    num_queries: int = 0  # so many of the texts, the first ones, are queries; what follows are documents
    query_prompt: str = ""  # put before queries instead of `prompt`
    truncation: Truncation = Truncation.RIGHT
    outputs: OutputKind = OutputKind.POOLED  # one kind or several
    request_class: RequestClass | None = None  # None = by size
    deadline: float = math.inf  # time.monotonic() seconds
    field: str = "input"  # what the dialect calls the texts, for error messages
    first_field: str = ""  # what it calls the first text, where that is no part of `field`
    is_single: bool = False  # whether the field holds one text or one list of ids, not a list of them

    @property
    def num_items(self) -> int:
        """Texts or lists of ids."""
        return len(self.texts if self.texts is not None else self.token_ids or ())

    def name_of(self, index: int) -> str:
        """What an error message calls an item; all of them where the index is -1."""
        if index == 0 and self.first_field:
            return self.first_field
        return self.field if index < 0 or self.is_single else f"{self.field}[{index - bool(self.first_field)}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest(Work):
    """What every dialect's decoder makes of an embedding request. `outputs` is POOLED or TOKENS."""

    dimensions: int | None = None  # of each row handed out; None = the model's own
    normalize: bool | None = None  # None = as the model does with pooled rows, and not for token rows


@dataclass(frozen=True, slots=True)
class Computed:
    """What was computed, as the engine gave it."""

    results: Results  # one entry for each single flag in Work.outputs
    tokens: TokenizedTexts

    @property
    def num_tokens(self) -> int:
        """Of all items."""
        return len(self.tokens.token_ids)

    @property
    def num_truncated(self) -> int:
        """Items that lost tokens."""
        return self.tokens.truncated.tobytes().count(1)  # a tenth of what numpy's sum takes for one item


@dataclass(frozen=True, slots=True)
class Embedded:
    """What every dialect's encoder starts from."""

    rows: NDArray[np.float32]  # [items, dimensions], finished; token rows: [num_tokens, dimensions]
    num_tokens: int
    truncated: NDArray[np.uint8]  # [items], 1 where tokens were cut off
    offsets: NDArray[np.int32] | None = None  # token rows: [items + 1], item i has rows[offsets[i] : offsets[i + 1]]

    @property
    def num_truncated(self) -> int:
        """Items that lost tokens."""
        return self.truncated.tobytes().count(1)


Tokenize = Callable[[RequestClass], Awaitable[TokenizedTexts]]  # of one request; raises TextRefused


class Pipeline:
    """Carries requests through the tokenizer pool and the batch managers."""

    def __init__(self, admission: Admission, tokenizers: TokenizerPool, managers: BatchManagers) -> None:
        self._admission = admission
        self._tokenizers = tokenizers
        self._managers = managers
        self.tokens = Tokens(tokenizers)  # for those who want tokens and texts, and no rows

    async def embed(self, request: EmbedRequest, trace: Trace) -> Embedded:
        """Rows for a request. Raises RequestError; cancelling it drops the work everywhere."""
        computed = await self.compute(request, trace)
        rows, tokens = computed.results[request.outputs], computed.tokens
        return Embedded(finish(rows.values, request), computed.num_tokens, tokens.truncated, rows.offsets)

    async def compute(self, request: Work, trace: Trace, *, tokenize: Tokenize | None = None) -> Computed:
        """The way of every request. Raises RequestError; cancelling it drops the work everywhere.

        `tokenize` is for whoever has more to do with the texts than to get their ids.
        """
        trace.model, trace.num_items, trace.is_single = request.model.name, request.num_items, request.is_single
        trace.is_prediction = bool(request.outputs & _SCORES)
        if request.deadline == math.inf:
            return await self._compute(request, trace, tokenize)
        try:
            async with asyncio.timeout_at(request.deadline):
                return await self._compute(request, trace, tokenize)
        except TimeoutError:
            raise DeadlineExceeded("the request's own deadline passed") from None

    async def _compute(self, request: Work, trace: Trace, tokenize: Tokenize | None) -> Computed:
        model = request.model
        if request.outputs not in model.outputs:
            raise unsupported(model, f"no {_names(request.outputs & ~model.outputs)}")
        num_tokens, request_class = self._classify(request, trace)
        trace.stage, trace.request_class = "admit", request_class.name.lower()
        self._admission.check(model.index, request_class)
        try:
            trace.stage, began = "tokenize", time.perf_counter()
            with self._admission.reserved(model.index, request_class, num_tokens):
                tokens = await (tokenize or partial(self.tokenize, request))(request_class)
            trace.stage, trace.tokenize_seconds = "queue", time.perf_counter() - began
            trace.num_tokens, trace.responds_since = len(tokens.token_ids), 0.0  # tokens alone are no answer here
            _check_size(request, tokens)
            if request.num_queries and model.has_query_table:
                tokens = as_queries(tokens, num_queries=request.num_queries)
            trace.seqlens = np.diff(tokens.offsets).tolist() if request.num_items > 1 else [trace.num_tokens]
            answer = await self._managers.submit(
                Submission(
                    model=model.index,
                    request_class=request_class,
                    outputs=request.outputs,
                    deadline=request.deadline,
                    seqlens=trace.seqlens,
                    token_ids=tokens.token_ids.data.cast("B"),
                    token_type_ids=b"" if tokens.token_type_ids is None else tokens.token_type_ids.data.cast("B"),
                )
            )
        except TextRefused as refused:
            raise text_error(refused, request.name_of, request.model, is_pair=bool(request.pair_texts)) from None
        except RequestRefused as refused:
            raise batch_error(refused, request.name_of) from None
        trace.stage, trace.responds_since = "respond", time.perf_counter()
        trace.queue_seconds, trace.compute_seconds = answer.queue_seconds, answer.compute_seconds
        _check_entries(answer.results)
        computed = Computed(answer.results, tokens)
        trace.num_truncated = computed.num_truncated
        return computed

    def _classify(self, request: Work, trace: Trace) -> tuple[int, RequestClass]:
        """Estimated tokens, and the class: what the request says, else by its size."""
        if request.texts is not None:
            trace.num_characters = sum(map(len, request.texts)) + sum(map(len, request.pair_texts))
            num_tokens = self._admission.estimate(request.model.index, trace.num_characters, len(request.texts))
        else:
            num_tokens = sum(map(len, request.token_ids or ()))
        num_tokens = min(num_tokens, request.num_items * request.model.max_seqlen)
        if request.request_class is not None:
            return num_tokens, request.request_class
        is_bulk = request.num_items > BULK_ITEMS or num_tokens > BULK_TOKENS
        return num_tokens, RequestClass.BULK if is_bulk else RequestClass.INTERACTIVE

    async def tokenize(self, request: Work, request_class: RequestClass) -> TokenizedTexts:
        """The ids that a request is computed from. Raises TextRefused."""
        model = request.model
        if request.texts is None:
            return await check_token_ids(
                request.token_ids or (),
                vocab_size=model.vocab_size,
                max_seqlen=model.max_seqlen,
                truncation=request.truncation,
            )
        tokens = await self._tokenize_texts(request, request_class)
        if not tokens.truncated.any():
            num_characters = sum(map(len, request.texts)) + sum(map(len, request.pair_texts))
            self._admission.learn(model.index, num_characters, len(tokens.token_ids))
        if request.outputs & OutputKind.MULTI_VECTOR and model.late is not None:
            tokens = await shaped(
                tokens,
                model.late,
                num_queries=request.num_queries,
                max_seqlen=model.max_seqlen,
                truncation=request.truncation,
            )
        return tokens

    async def _tokenize_texts(self, request: Work, request_class: RequestClass) -> TokenizedTexts:
        assert request.texts is not None
        model, num_queries = request.model.index, request.num_queries
        ask = partial(
            self._tokenizers.tokenize, model=model, request_class=request_class, truncation=request.truncation
        )
        if not num_queries or request.query_prompt == request.prompt:
            return await ask(request.texts, prompt=request.prompt, pair_texts=request.pair_texts)
        queries = await ask(request.texts[:num_queries], prompt=request.query_prompt)
        if num_queries == len(request.texts):
            return queries
        try:
            documents = await ask(request.texts[num_queries:], prompt=request.prompt)
        except TextRefused as refused:
            index = refused.index + num_queries if refused.index >= 0 else -1
            raise TextRefused(
                refused.reason, index, num_tokens=refused.num_tokens, max_tokens=refused.max_tokens
            ) from None
        return join([queries, documents])


_OUTPUT_NAMES = {
    OutputKind.POOLED: "embeddings",
    OutputKind.LOGITS: "scores of texts",
    OutputKind.TOKENS: "rows of single tokens",
    OutputKind.SPARSE: "sparse embeddings",
    OutputKind.TOKEN_LOGITS: "labels of tokens",
    OutputKind.MULTI_VECTOR: "rows for late interaction",
}


def _names(outputs: OutputKind) -> str:
    return ", ".join(_OUTPUT_NAMES[output] for output in outputs)


def unsupported(model: ServedModel, lack: str) -> UnsupportedTask:
    """The error for what a model does not do, which says what it does."""
    return UnsupportedTask(f"this model gives {lack}; it is for {model.task.value}")


def _check_size(request: Work, tokens: TokenizedTexts) -> None:
    """Raises InvalidRequest, before anything is computed, where the rows would be more than a frontend can write, or
    compare."""
    if not request.outputs & ROWS_OF_TOKENS:
        return
    num_tokens = len(tokens.token_ids)
    dimensions = request.model.token_dimensions or request.model.dimensions
    num_query_tokens = int(tokens.offsets[request.num_queries])
    comparisons = num_query_tokens * (num_tokens - num_query_tokens) * dimensions
    if 4 * num_tokens * dimensions > MAX_TOKEN_ROW_BYTES or comparisons > MAX_COMPARISONS:
        raise InvalidRequest(TOO_LARGE)


def _check_entries(results: Results) -> None:
    """Raises InvalidRequest where sparse rows, whose number nobody knows before, are more than a frontend can write."""
    sparse = results.get(OutputKind.SPARSE)
    if sparse is not None and sparse.values.nbytes > MAX_SPARSE_ROW_BYTES:
        raise InvalidRequest(TOO_LARGE)


def finish(rows: NDArray[np.float32], request: EmbedRequest) -> NDArray[np.float32]:
    """Cut to the wished dimensions, then scale to length 1 where the model does: in this order, or the
    cut rows would be shorter than 1."""
    if request.dimensions is not None and request.dimensions < rows.shape[1]:
        rows = rows[:, : request.dimensions]
    by_model = request.model.normalize and request.outputs is OutputKind.POOLED
    if by_model if request.normalize is None else request.normalize:
        norms = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float32))
        # torch's normalize has the same floor, so a row of zeros stays zero
        rows = rows / np.maximum(norms, np.float32(1e-12))[:, None]
    return rows

"""The path of a request: `Pipeline.compute` admits it, `_answer` tokenizes and batches it, `embed` finishes its rows.

Knows texts, ids and rows; nothing of HTTP, JSON or any dialect.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

import numpy as np

from batch_manager.client import BatchManagers
from batch_manager.messages import RequestRefused, RequestResults, Submission
from engine.types import OutputKind
from server.requests.admission import Admission, Admitted, Asked
from server.requests.errors import DeadlineExceeded
from server.requests.given_ids import GivenIds, KnownSurroundingIds
from server.requests.late_interaction import Lengths, lengths, marked_queries, shaped
from server.requests.refusals import batch_error, details_error, lacks_outputs, text_error
from server.requests.repeated import Packed, packed
from server.requests.work import (
    Computed,
    DecodeRequest,
    Embedded,
    EmbedRequest,
    Item,
    Request,
    TokenizeRequest,
    Trace,
    Work,
    bytes_to_hold,
    check_sparse_rows,
    check_token_rows,
    finish,
    strongest,
    text_of,
)
from tokenizer_pool.client import TokenizerPool
from tokenizer_pool.messages import TextRefused, Truncation
from tokenizer_pool.tasks import Chat, Token, TokenizedTexts
from tokenizer_pool.token_ids import check_token_ids, join
from wire.frames import Buffer
from wire.parts import Part
from wire.vocabulary import RequestClass

BULK_ITEMS = 8  # a request of more items, or of more tokens, is bulk whatever it says
BULK_TOKENS = 4096
_SCORES = OutputKind.LOGITS | OutputKind.TOKEN_LOGITS
_CLASS_NAMES = tuple(each.name.lower() for each in RequestClass)
_CHARS_PER_TOKEN = 4  # about, to tell large requests to /tokenize from small ones
_Work = TypeVar("_Work", bound=Work)
_Texts = TypeVar("_Texts", Work, TokenizeRequest)
Group = tuple[Sequence[int], Work]  # places in the whole request, and a request for these items alone
Tokenize = Callable[[RequestClass], Awaitable[TokenizedTexts]]  # of one request; raises TextRefused


class Pipeline:
    """Carries requests through the tokenizer pool and the batch managers."""

    def __init__(
        self,
        admission: Admission,
        tokenizers: TokenizerPool,
        managers: BatchManagers,
        *,
        given_ids: GivenIds | None = None,
    ) -> None:
        """`given_ids` None takes all token ids for the model's own."""
        self._given_ids = given_ids
        self._surroundings = KnownSurroundingIds(tokenizers)
        self._admission = admission
        self._tokenizers = tokenizers
        self._managers = managers

    async def embed(self, request: EmbedRequest, trace: Trace) -> Embedded:
        """Computes rows for a request. Raises RequestError; cancelling it drops the work everywhere."""
        computed = await self.compute(request, trace)
        rows, tokens = computed.results[request.outputs], computed.tokens
        return Embedded(finish(rows.values, request), computed.num_tokens, tokens.truncated, rows.offsets)

    def compute(self, request: Work, trace: Trace, *, tokenize: Tokenize | None = None) -> Awaitable[Computed]:
        """The way of every request for rows. Raises RequestError; cancelling it drops the work everywhere.

        `tokenize` replaces the usual tokenizing, for requests that need more of their texts than the ids.
        """
        _begin(request, trace)
        trace.is_prediction = bool(request.outputs & _SCORES)
        compute = self._compute if request.deadline == math.inf else self._compute_in_time
        return compute(request, trace, tokenize)

    async def _compute_in_time(self, request: Work, trace: Trace, tokenize: Tokenize | None) -> Computed:
        async with _ends_at(request.deadline):
            return await self._compute(request, trace, tokenize)

    async def _compute(self, request: Work, trace: Trace, tokenize: Tokenize | None) -> Computed:
        model, context = request.model, request.context
        if request.outputs not in model.outputs:
            raise lacks_outputs(model, request.outputs & ~model.outputs)
        request = await self.with_own_ids(request, trace)
        of_ids = request.lengths_of_ids
        num_tokens = self._measure(request, trace, of_ids)
        request_class = _choose_class(request, trace, num_tokens)
        trace.stage = "admit"
        needs_memory = bool(
            self._admission.num_kept_back and bytes_to_hold(request, num_tokens=num_tokens, encoding=context.encoding)
        )
        asked = Asked(
            model.index,
            request_class,
            num_tokens,
            request.deadline,
            context.key,
            request.num_items,
            needs_memory,
            least_tokens=sum([min(length, request.max_seqlen) for length in of_ids]) if of_ids else 0,
        )
        with self._admission.admit(asked) as admitted:
            return await self._answer(request, trace, admitted, tokenize or partial(self.token_ids, request))

    async def with_own_ids(self, request: _Work, trace: Trace) -> _Work:
        """A request whose token ids, if it has any, are the model's own, as far as can be told. Raises RequestError.

        For those who tokenize a request themselves: `compute` does the same.
        """
        if self._given_ids is None or list not in request.kinds:
            return request
        return await self._given_ids.taken(request, trace, self._surroundings)

    async def _answer(self, request: Work, trace: Trace, admitted: Admitted, tokenize: Tokenize) -> Computed:
        model, request_class, context = request.model, admitted.asked.request_class, request.context
        try:
            trace.stage, began = "tokenize", time.perf_counter()
            tokens = await tokenize(request_class)
            trace.stage, trace.tokenize_seconds = "queue", time.perf_counter() - began
            admitted.correct(len(tokens.token_ids))
            trace.num_tokens = num_tokens = len(tokens.token_ids)
            check_token_rows(request, tokens)
            is_part = context.memory_of_parts is not None
            num_bytes = bytes_to_hold(request, num_tokens=num_tokens, encoding=context.encoding, is_part=is_part)
            if num_bytes or is_part:
                with admitted.kept_back():
                    await context.hold(self._admission.row_memory_of(context.request_class), num_bytes)
            if request.num_queries and model.has_query_table:
                tokens = marked_queries(tokens, num_queries=request.num_queries)
        except TextRefused as refused:
            raise text_error(refused, request.name_of, request.model, is_pair=bool(request.pair_texts)) from None
        parts = parts_of(tokens, request)
        if tokens.num_items > 1:
            trace.seqlens = np.diff(tokens.offsets).tolist()
            sequences = packed(tokens, parts, shares_prefixes=model.shares_prefixes)
        else:
            trace.seqlens = [num_tokens]
            sequences = Packed([num_tokens], tokens.token_ids.data.cast("B"), parts, num_tokens)
        answer = await self._submit(request, sequences, admitted)
        trace.stage, trace.responds_since = "respond", time.perf_counter()
        trace.queue_seconds, trace.compute_seconds = answer.queue_seconds, answer.compute_seconds
        trace.has_joined = answer.has_joined
        results = answer.results
        if model.max_active_dims is not None:
            results = await strongest(results, model.max_active_dims)
        check_sparse_rows(results, sequences.places)
        if sequences.places is not None:
            results = await asyncio.to_thread(sequences.spread, results)  # there may be many rows to copy
        trace.num_truncated = tokens.truncated.tobytes().count(1)
        return Computed(results, tokens)

    async def _submit(self, request: Work, sequences: Packed, admitted: Admitted) -> RequestResults:
        admitted.computes(sequences.num_tokens)
        submission = Submission(
            model=request.model.index,
            request_class=admitted.asked.request_class,
            outputs=request.outputs,
            deadline=request.deadline,
            seqlens=sequences.seqlens,
            token_ids=sequences.token_ids,
            parts=sequences.parts,
            key=admitted.key.index,
            weight=admitted.key.weight,
        )
        try:
            return await self._managers.submit(submission)
        except RequestRefused as refused:
            refused.index = sequences.first_index(refused.index)
            raise batch_error(refused, request.name_of) from None

    def _measure(self, request: Work, trace: Trace, of_ids: Sequence[int]) -> int:
        """The estimated number of tokens; `of_ids` are the lengths of lists of ids."""
        num_tokens, num_texts = sum(of_ids), request.num_items - len(of_ids)
        if num_texts:
            trace.num_characters = num_characters = request.num_characters
            num_characters += len(request.prompt) * num_texts
            num_tokens += self._admission.estimate(
                request.model.index, num_characters, num_texts, key=request.context.key
            )
        return min(num_tokens, request.max_num_tokens)

    async def tokenize(self, request: TokenizeRequest, trace: Trace) -> list[list[Token]]:
        """The tokens of each text, none cut off. Raises RequestError; cancelling it drops the work everywhere."""
        _begin(request, trace)
        trace.num_characters = num_characters = sum(map(len, map(text_of, request.items)))
        request_class = _choose_class(request, trace, num_characters // _CHARS_PER_TOKEN)
        async with _answer_of_the_pool(request, trace):
            if Chat in request.kinds:
                request = await rendered(self._tokenizers, request, request_class)
            tokens = await self.token_details(request, request_class)
        trace.num_tokens = sum(map(len, tokens))
        return tokens

    async def decode(self, request: DecodeRequest, trace: Trace) -> list[str]:
        """The text of each list of ids. Raises RequestError; cancelling it drops the work everywhere."""
        _begin(request, trace)
        trace.num_tokens = num_tokens = sum(map(len, request.items))
        request_class = _choose_class(request, trace, num_tokens)
        async with _answer_of_the_pool(request, trace):
            return await self._tokenizers.decode(
                request.items,
                model=request.model.index,
                request_class=request_class,
                skip_special_tokens=request.skip_special_tokens,
            )

    async def token_details(self, request: TokenizeRequest, request_class: RequestClass) -> list[list[Token]]:
        """The tokens of each text, none cut off. Raises TextRefused."""
        return await self._tokenizers.tokenize_details(
            request.texts,
            model=request.model.index,
            request_class=request_class,
            add_special_tokens=request.add_special_tokens,
            prompt=request.prompt,
        )

    async def shorten(
        self, request: Work, texts: Sequence[str], max_tokens: int, request_class: RequestClass
    ) -> Sequence[str]:
        """Cut long texts that have more tokens down to a few more; cut off at the request's end. Raises TextRefused."""
        return await self._tokenizers.shorten(
            texts,
            model=request.model.index,
            request_class=request_class,
            max_tokens=max_tokens,
            truncation=request.truncation or Truncation.RIGHT,
        )

    async def token_ids(self, request: Work, request_class: RequestClass) -> TokenizedTexts:
        """The ids that a request is computed from. Raises TextRefused."""
        model = request.model
        kinds = request.kinds
        if len(kinds) > 1:
            ask = partial(self.token_ids, request_class=request_class)
            in_order = dict.fromkeys(map(type, request.items))  # always the same of two wrong items is named
            return await tokenized([_of_kind(request, kind) for kind in in_order], ask)
        if list in kinds:
            return await check_token_ids(
                cast(Sequence[list[int]], request.items),
                vocab_size=model.vocab_size,
                max_seqlen=request.max_seqlen,
                truncation=request.truncation,
            )
        if Chat in kinds:
            as_text = await rendered(self._tokenizers, request, request_class)
            return await self.token_ids(as_text, request_class)
        of_roles = lengths(model.late, request.max_seqlen) if request.outputs & OutputKind.MULTI_VECTOR else None
        tokens = await self._tokenize_texts(request, request_class, of_roles)
        if 1 not in tokens.truncated.tobytes():  # a tenth of the time of numpy's any for one text
            num_texts, key = request.num_items, request.context.key
            num_characters = request.num_characters + len(request.prompt) * num_texts
            self._admission.learn(model.index, num_characters, len(tokens.token_ids), num_texts, key=key)
        return tokens if of_roles is None else await self._shaped(tokens, request)

    async def _shaped(self, tokens: TokenizedTexts, request: Work) -> TokenizedTexts:
        late, num_leading = request.model.late, 1
        assert late is not None, "there are lengths"
        if late.marks_text_start:
            around = await self._surroundings.of(request.model.index)
            num_leading = len(around.before) if request.add_special_tokens else 0
        return await shaped(
            tokens, late, num_queries=request.num_queries, max_seqlen=request.max_seqlen, num_leading=num_leading
        )

    async def _tokenize_texts(
        self, request: Work, request_class: RequestClass, of_roles: Lengths | None
    ) -> TokenizedTexts:
        texts, num_queries = request.texts, request.num_queries
        ask = partial(
            self._tokenizers.tokenize,
            model=request.model.index,
            request_class=request_class,
            truncation=request.truncation,
            add_special_tokens=request.add_special_tokens,
        )
        # tokenizers know the length of the model, of which an adapter's may be a part
        of_query = of_document = request.max_seqlen if request.model.lora else request.max_tokens
        if of_roles is not None:
            of_query, of_document = of_roles.query, of_roles.document
        if not num_queries or (request.query_prompt == request.prompt and of_query == of_document):
            return await ask(texts, prompt=request.prompt, pair_texts=request.pair_texts, max_tokens=of_document)
        queries = await ask(texts[:num_queries], prompt=request.query_prompt, max_tokens=of_query)
        if num_queries == len(texts):
            return queries
        try:
            documents = await ask(texts[num_queries:], prompt=request.prompt, max_tokens=of_document)
        except TextRefused as refused:
            raise refused.moved(range(num_queries, len(texts))) from None
        return join([queries, documents])


def _begin(request: Request, trace: Trace) -> None:
    model = request.model
    trace.model, trace.lora = model.base_name, model.name if model.lora else ""
    trace.num_items, trace.is_single = request.num_items, request.is_single


def parts_of(tokens: TokenizedTexts, work: Work) -> dict[Part, Buffer]:
    """The parts of the texts beside their ids, for the batch manager."""
    parts: dict[Part, Buffer] = {part: values.data.cast("B") for part, values in tokens.parts.items()}
    lora = work.model.lora  # a model with adapters by task has none of these
    of_queries, of_others = lora or work.query_adapter, lora or work.adapter
    if of_queries or of_others:
        adapters = np.full(len(tokens.truncated), of_others, np.int32)
        adapters[: work.num_queries] = of_queries
        parts[Part.ADAPTERS] = adapters.data.cast("B")
    return parts


def _choose_class(request: Request, trace: Trace, num_tokens: int) -> RequestClass:
    """The class by the request's size, or bulk if it says so. A large one would delay interactive ones, whatever it is
    called."""
    is_bulk = request.num_items > BULK_ITEMS or num_tokens > BULK_TOKENS or request.request_class is RequestClass.BULK
    request_class = RequestClass.BULK if is_bulk else RequestClass.INTERACTIVE
    request.context.request_class = request_class
    trace.request_class = _CLASS_NAMES[request_class]
    return request_class


@asynccontextmanager
async def _ends_at(deadline: float) -> AsyncIterator[None]:
    """Goes around the work for a request. Raises DeadlineExceeded when its deadline passes, if it has one."""
    try:
        async with asyncio.timeout_at(None if deadline == math.inf else deadline):
            yield
    except TimeoutError:
        raise DeadlineExceeded("the request's deadline passed") from None


@asynccontextmanager
async def _answer_of_the_pool(request: TokenizeRequest | DecodeRequest, trace: Trace) -> AsyncIterator[None]:
    """Goes around a request that needs no engine: measures time, keeps the deadline, translates refusals."""
    trace.stage, began = "tokenize", time.perf_counter()
    try:
        async with _ends_at(request.deadline):
            yield
    except TextRefused as refused:
        raise details_error(refused, request) from None
    trace.stage, trace.responds_since = "respond", time.perf_counter()
    trace.tokenize_seconds = trace.responds_since - began


async def rendered(pool: TokenizerPool, request: _Texts, request_class: RequestClass) -> _Texts:
    """The request with texts in place of its conversations. Raises TextRefused."""
    chats = cast(Sequence[Chat], request.items)
    return replace(request, items=await pool.render(chats, model=request.model.index, request_class=request_class))


# A request with items of several kinds is tokenized in groups, which are put together again.


def _of_kind(request: Work, kind: type[Item]) -> Group:
    """The items of this kind. A request of several kinds is of queries alone or of documents alone."""
    places = [place for place, item in enumerate(request.items) if type(item) is kind]
    items = [request.items[place] for place in places]
    return places, replace(request, items=items, num_queries=len(items) if request.num_queries else 0)


async def tokenized(groups: Sequence[Group], tokenize: Callable[[Work], Awaitable[TokenizedTexts]]) -> TokenizedTexts:
    """Make token ids, in the order of the request. Raises TextRefused with the index in the request."""
    parts = []
    for places, part in groups:
        try:
            parts.append(await tokenize(part))
        except TextRefused as refused:
            raise refused.moved(places) from None
    order = np.argsort(np.concatenate([np.array(places, np.int64) for places, _ in groups]))
    return join(parts).taken(order)

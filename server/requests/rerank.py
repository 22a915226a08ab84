"""Ranks documents for a query with what the model gives: scores of pairs, embeddings or late interaction.

Queries and documents may be cut to a number of tokens of their own, before they are put together or into a template.
The tokenizer pool cuts what is too long for the model as a whole. Here it is asked for the tokens of the texts that may
have too many, and a text ends where the last token ends that may stay.

Knows texts and models; nothing of HTTP, JSON or any dialect.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.model.tasks import Activation
from engine.types import OutputKind
from server.requests.errors import EmptyInput, InvalidRequest
from server.requests.late_interaction import counted, max_sim, max_sim_of_pairs
from server.requests.limits import steps
from server.requests.pipeline import Pipeline, Tokenize
from server.requests.prompts import Purpose, adapter_for, prompt_for
from server.requests.refusals import unsupported
from server.requests.work import Computed, Request, TokenizeRequest, Trace, Work, bounded, whole_numbers
from tokenizer_pool.client import MAX_DETAIL_CHARS
from tokenizer_pool.messages import TextRefusal, TextRefused, Truncation
from tokenizer_pool.shortening import LONG_TEXT_CHARS
from tokenizer_pool.tasks import Token, TokenizedTexts
from wire.records import light_dataclass
from wire.vocabulary import RequestClass

_FEWER = (0, 0, 1, 2)  # nearly all texts take one turn or two
_MAX_INSTRUCTION_CHARS = 250  # for each token of a text: it is tokenized with each document again


@light_dataclass(frozen=True, slots=True, kw_only=True)
class RerankRequest(Request):
    """A query and at least one document, or as many queries as documents; any may be empty, but not both of a pair."""

    queries: Sequence[str]  # one for all documents, or one for each of them
    documents: Sequence[str]
    raw_scores: bool = False  # scores as the model gives them
    is_bounded: bool = False  # scores of pairs with sigmoid; otherwise as the model's files say
    instruction: str | None = None  # of a generative reranker; None = the model's own
    truncation: Truncation = Truncation.RIGHT
    max_tokens: int | None = None  # of each text or pair; None = as many as the model takes
    max_query_tokens: int | None = None  # of a query's own text; None = as many as fit
    max_document_tokens: int | None = None  # the same of a document
    field: str = "documents"  # what the dialect calls these, for error messages, as the next two
    first_field: str = "query"
    instruction_field: str = "instruction"

    @property
    def num_items(self) -> int:
        """The number of documents."""
        return len(self.documents)


@dataclass(frozen=True, slots=True)
class Ranked:
    """The scores of the documents."""

    scores: NDArray[np.float32]  # [documents], in the request's order; larger is better
    num_tokens: int  # of all that was computed
    truncated: NDArray[np.uint8]  # [pairs, or texts with the queries first], 1 where tokens were cut off

    @property
    def num_truncated(self) -> int:
        """The number of pairs or texts that lost tokens."""
        return self.truncated.tobytes().count(1)

    def best_first(self) -> NDArray[np.intp]:
        """Indices of the documents; equal scores keep the request's order."""
        return np.argsort(-self.scores, kind="stable")


async def rank(pipeline: Pipeline, request: RerankRequest, trace: Trace) -> Ranked:
    """Computes scores for a request. Raises RequestError; cancelling it drops the work everywhere."""
    outputs = request.model.outputs
    _check_instruction(request)
    if OutputKind.LOGITS in outputs and len(request.model.labels) <= 1:
        return await _rank_pairs(pipeline, request, trace)
    if OutputKind.POOLED in outputs:
        return await _rank_embeddings(pipeline, request, trace)
    if OutputKind.MULTI_VECTOR in outputs:
        return await _rank_token_rows(pipeline, request, trace)
    several = "a score for each of several labels" if OutputKind.LOGITS in outputs else "no scores of pairs of texts"
    raise unsupported(request.model, several)


def _check_instruction(request: RerankRequest) -> None:
    """Raises InvalidRequest. A text of as many characters would be cut, but what an instruction asks for is often said
    at its end."""
    if request.instruction is None:
        return
    name, max_chars = request.instruction_field, _MAX_INSTRUCTION_CHARS * request.model.max_seqlen
    if request.model.instruction is None:
        raise InvalidRequest(f"this model does not take {name}", param=name)
    if len(request.instruction) > max_chars:
        raise InvalidRequest(f"{name} has more than {max_chars} characters", param=name)


async def _rank_pairs(pipeline: Pipeline, request: RerankRequest, trace: Trace) -> Ranked:
    """Ranks by a cross-encoder, or a generative reranker."""
    model, documents = request.model, request.documents
    instruction = model.instruction if request.instruction is None else request.instruction
    work = _work(
        request,
        items=list(request.queries) * (len(documents) // len(request.queries)),
        pair_texts=documents,
        prompt=model.default_prompt if instruction is None else instruction,
        outputs=OutputKind.LOGITS,
    )
    computed = await _compute(pipeline, work, request, trace)
    scores = computed.results[OutputKind.LOGITS].values
    if not request.raw_scores and (request.is_bounded or model.activation is not Activation.IDENTITY):
        scores = await bounded(scores)
    return Ranked(scores[:, 0], computed.num_tokens, computed.tokens.truncated)


async def _rank_embeddings(pipeline: Pipeline, request: RerankRequest, trace: Trace) -> Ranked:
    """Ranks by the cosine of embeddings; 0 for a blank document, if the model has no tokens for it."""
    try:
        return await _rank_by_cosine(pipeline, request, trace)
    except EmptyInput:
        is_blank = np.array([not text.strip() for text in request.documents])
        if not is_blank.any() or not all(query.strip() for query in request.queries):
            raise
    # A query stands in for them, so that error messages have the right index.
    filled = [text if text.strip() else request.queries[0] for text in request.documents]
    ranked = await _rank_by_cosine(pipeline, replace(request, documents=filled), trace)
    return replace(ranked, scores=np.where(is_blank, np.float32(0), ranked.scores))


async def _rank_by_cosine(pipeline: Pipeline, request: RerankRequest, trace: Trace) -> Ranked:
    computed = await _compute(pipeline, _queries_and_documents(request, OutputKind.POOLED), request, trace)
    rows = computed.results[OutputKind.POOLED].values[:, : request.model.truncate_dim]
    rows = whole_numbers(rows, request.model)
    scores = await _cosines(rows, num_queries=len(request.queries))
    return Ranked(scores, computed.num_tokens, computed.tokens.truncated)


async def _rank_token_rows(pipeline: Pipeline, request: RerankRequest, trace: Trace) -> Ranked:
    """Ranks by late interaction."""
    num_queries = len(request.queries)
    computed = await _compute(pipeline, _queries_and_documents(request, OutputKind.MULTI_VECTOR), request, trace)
    rows, tokens = computed.results[OutputKind.MULTI_VECTOR], computed.tokens
    assert rows.offsets is not None, "rows of tokens are ragged"
    counts = counted(tokens, request.model.late, num_queries=num_queries)
    compare = max_sim if num_queries == 1 else max_sim_of_pairs
    scores = await compare(rows.values, rows.offsets, counts)
    return Ranked(scores, computed.num_tokens, tokens.truncated)


async def _compute(pipeline: Pipeline, work: Work, request: RerankRequest, trace: Trace) -> Computed:
    limits = request.max_query_tokens, request.max_document_tokens
    tokenize = (
        partial(pipeline.token_ids, work) if limits == (None, None) else partial(tokenize_cut, pipeline, work, limits)
    )
    if request.instruction:
        tokenize = partial(_tokenize_told, tokenize, request.instruction_field)
    return await pipeline.compute(work, trace, tokenize=tokenize)


async def _tokenize_told(tokenize: Tokenize, name: str, request_class: RequestClass) -> TokenizedTexts:
    """The ids of pairs with an instruction, whose field is `name`. Only the template can tell whether it takes one.

    Raises InvalidRequest and TextRefused.
    """
    try:
        return await tokenize(request_class)
    except TextRefused as refused:
        if refused.reason is not TextRefusal.UNUSED:
            raise
    raise InvalidRequest(f"this model does not take {name}: its template has no place for it", param=name)


def _queries_and_documents(request: RerankRequest, outputs: OutputKind) -> Work:
    """The queries as the first texts; queries and documents get the model's prompts and adapters for them.

    Raises InvalidRequest if the model has adapters, and none for one of these.
    """
    return _work(
        request,
        items=[*request.queries, *request.documents],
        prompt=prompt_for(request.model, Purpose.DOCUMENT) or "",
        num_queries=len(request.queries),
        query_prompt=prompt_for(request.model, Purpose.QUERY) or "",
        adapter=adapter_for(request.model, Purpose.DOCUMENT, field=request.field),
        query_adapter=adapter_for(request.model, Purpose.QUERY, field=request.first_field),
        outputs=outputs,
        first_field=request.first_field,
        num_first=len(request.queries),
    )


def _work(request: RerankRequest, **own: Any) -> Work:
    """The work for the request, with fields of its own beside those that all of it has."""
    return Work(
        model=request.model,
        truncation=request.truncation,
        max_tokens=request.max_tokens,
        request_class=request.request_class,
        deadline=request.deadline,
        context=request.context,
        field=request.field,
        **own,
    )


async def _cosines(rows: NDArray[np.float32], *, num_queries: int) -> NDArray[np.float32]:
    """Cosines of the first rows, which are of queries, with the others, float32 [rows - num_queries]: of a single query
    with each, else of each query with a row of its own. Long work is done in slices.
    """
    queries = rows[:num_queries] / _lengths(rows[:num_queries])[:, None]
    documents = rows[num_queries:]
    cosines = np.empty(len(documents), np.float32)
    async for part in steps(*documents.shape):
        if num_queries == 1:
            products = documents[part] @ queries[0]
        else:
            products = np.einsum("nd,nd->n", documents[part], queries[part])
        cosines[part] = products / _lengths(documents[part])
    return cosines


def _lengths(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Euclidean lengths, float32 [rows], never zero, so that the cosine of a row of zeros is 0."""
    lengths: NDArray[np.float32] = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float32))
    return np.maximum(lengths, np.float32(1e-12))


async def tokenize_cut(
    pipeline: Pipeline, request: Work, limits: tuple[int | None, int | None], request_class: RequestClass
) -> TokenizedTexts:
    """Makes ids of pairs, or of queries and documents, with at most so many tokens of each query's text, and of each
    document's; None = as many as it has.

    Raises TextRefused with the index in the request.
    """
    texts, of_query, of_document = list(request.texts), *limits
    first = 0 if request.pair_texts else request.num_queries  # the place of the first document
    queries, documents = (texts, list(request.pair_texts)) if request.pair_texts else (texts[:first], texts[first:])
    queries, are_cut = await _cut_texts(pipeline, request, queries, of_query, request_class, first=0)
    documents, is_cut = await _cut_texts(pipeline, request, documents, of_document, request_class, first=first)
    if request.pair_texts:
        request, is_cut = replace(request, items=queries, pair_texts=documents), are_cut | is_cut
    else:
        request, is_cut = replace(request, items=queries + documents), np.concatenate((are_cut, is_cut))
    tokens = await pipeline.token_ids(request, request_class)
    return replace(tokens, truncated=tokens.truncated | is_cut)


async def _cut_texts(
    pipeline: Pipeline,
    request: Work,
    texts: list[str],
    max_tokens: int | None,
    request_class: RequestClass,
    *,
    first: int,
) -> tuple[list[str], NDArray[np.uint8]]:
    """The texts, and 1 where one was cut. One that is there several times, as the query of pairs is, is cut once.

    `first` is the place of the first in the request. Raises TextRefused with the index there.
    """
    if max_tokens is None:
        return texts, np.zeros(len(texts), np.uint8)
    places = dict[str, int]()
    for place, text in enumerate(texts, first):
        places.setdefault(text, place)
    try:
        kept = await _cut_each(pipeline, request, list(places), max_tokens, request_class)
    except TextRefused as refused:
        raise refused.moved(list(places.values())) from None
    left = dict(zip(places, kept, strict=True))
    is_cut = [len(left[text]) < len(text) for text in texts]
    return [left[text] for text in texts], np.array(is_cut, np.uint8)


async def _cut_each(
    pipeline: Pipeline, request: Work, texts: Sequence[str], max_tokens: int, request_class: RequestClass
) -> list[str]:
    """The part that stays of each text. Raises TextRefused with the index in `texts`."""
    shortened, left = await pipeline.shorten(request, texts, max_tokens, request_class), list(texts)
    for places in _groups(texts, shortened, max_tokens):
        try:
            kept = await _cut(pipeline, request, [shortened[place] for place in places], max_tokens, request_class)
        except TextRefused as refused:
            is_one = refused.index >= 0 or len(places) == 1
            refused.index = places[max(refused.index, 0)] if is_one else -1
            raise
        for place, text in zip(places, kept, strict=True):
            left[place] = text
    return left


def _groups(texts: Sequence[str], shortened: Sequence[str], max_tokens: int) -> Iterator[list[int]]:
    """Places of texts that may have too many tokens, in groups that the tokenizer pool takes at once.

    A character that is not ASCII may become several tokens.
    """
    group: list[int] = []
    num_chars = 0
    for place, text in enumerate(shortened):
        is_counted = len(text) > LONG_TEXT_CHARS and len(text) == len(texts[place])
        if is_counted or (len(text) < max_tokens and text.isascii()):
            continue
        if group and num_chars + len(text) > MAX_DETAIL_CHARS:
            yield group
            group, num_chars = [], 0
        group.append(place)
        num_chars += len(text)
    if group:
        yield group


async def _cut(
    pipeline: Pipeline, request: Work, texts: Sequence[str], max_tokens: int, request_class: RequestClass
) -> list[str]:
    """The same of texts that are not too many characters together.

    What is left of a text may have more tokens by itself: a word without its beginning is another one. So it is cut
    again.
    """
    left, places, is_left = list(texts), list(range(len(texts))), request.truncation is Truncation.LEFT
    for most in _turns(max_tokens):
        items = [left[place] for place in places]
        asked = TokenizeRequest(model=request.model, items=items, add_special_tokens=False, context=request.context)
        try:
            found = zip(places, await pipeline.token_details(asked, request_class), strict=True)
        except TextRefused as refused:
            raise refused.moved(places) from None
        too_long = {place: tokens for place, tokens in found if len(tokens) > max_tokens}
        for place, tokens in too_long.items():
            left[place] = _kept(left[place], tokens, most, is_left=is_left)
        places = list(too_long)
        if not places:
            break
    return left


def _turns(max_tokens: int) -> Iterator[int]:
    """The tokens to keep of a text that has more, each time that it has: fewer and fewer, and at last none."""
    yield from (max(max_tokens - fewer, 0) for fewer in _FEWER)
    while max_tokens:
        max_tokens //= 2
        yield max_tokens


def _kept(text: str, tokens: Sequence[Token], max_tokens: int, *, is_left: bool) -> str:
    """A character that would be split between two tokens goes."""
    if len(tokens) <= max_tokens:
        return text
    if not max_tokens:
        return ""
    if is_left:
        return text[max(tokens[-max_tokens].start or 0, tokens[-max_tokens - 1].stop or 0) :]
    return text[: min(tokens[max_tokens - 1].stop or 0, tokens[max_tokens].start or 0)]

"""Scores of texts, pairs and tokens by models with labels, and labels of tokens joined to labels of longer spans.

Spans are made as transformers' pipeline does: https://github.com/huggingface/transformers,
pipelines/token_classification.py. A span that is outside of every entity (label O) is left out, as there.

Knows no dialect.
"""

import enum
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from engine.model.tasks import Activation
from engine.types import OutputKind
from server.requests.errors import InvalidRequest
from server.requests.limits import TimeSlice
from server.requests.models import ServedModel
from server.requests.pipeline import Group, Pipeline, tokenized
from server.requests.work import Embedded, TokenizeRequest, Trace, Work, activated, bounded
from tokenizer_pool.messages import Truncation
from tokenizer_pool.tasks import Token, TokenizedTexts
from tokenizer_pool.token_ids import check_token_ids
from wire.records import light_dataclass
from wire.vocabulary import RequestClass

OUTSIDE = "O"


@light_dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyRequest(Work):
    """Texts, pairs or lists of ids whose scores are wanted."""

    outputs: OutputKind = OutputKind.LOGITS
    alone: frozenset[int] = frozenset()  # indices of texts without a partner, "" in pair_texts, if others have one
    raw_scores: bool = False  # without an activation
    is_bounded: bool = False  # with softmax or, of one label, sigmoid; otherwise as the model's files say
    activation: Activation | None = None  # instead of all that


async def classify(pipeline: Pipeline, request: ClassifyRequest, trace: Trace) -> Embedded:
    """Computes scores, float32 [items, labels]. Raises RequestError; cancelling it drops the work everywhere."""
    has_pairs = bool(request.pair_texts)
    has_texts_alone = not has_pairs or bool(request.alone)
    if has_texts_alone and request.model.instruction is not None and request.kinds != {list}:
        raise InvalidRequest(
            f"{request.field} must be pairs: this model scores a query with a document", param=request.field
        )

    async def tokenize(request_class: RequestClass) -> TokenizedTexts:
        ask = partial(pipeline.token_ids, request_class=request_class)
        return await tokenized(_texts_and_pairs(request, request.alone), ask)

    computed = await pipeline.compute(request, trace, tokenize=tokenize if has_pairs and has_texts_alone else None)
    scores = computed.results[OutputKind.LOGITS].values
    activation = request.model.activation
    if request.activation is not None:
        scores = await activated(scores, request.activation)
    elif not request.raw_scores:
        has_own = not request.is_bounded and activation is not Activation.SOFTMAX
        scores = await (activated(scores, activation) if has_own else bounded(scores))
    return Embedded(scores, computed.num_tokens, computed.tokens.truncated)


def _texts_and_pairs(request: Work, without_partner: Collection[int]) -> list[Group]:
    """Two groups of a request that has both: the texts at these places, which have no partner, and the pairs."""
    texts, pair_texts = request.texts, request.pair_texts
    alone = sorted(without_partner)
    paired = [index for index in range(len(texts)) if index not in without_partner]
    return [
        (alone, replace(request, items=[texts[index] for index in alone], pair_texts=())),
        (
            paired,
            replace(
                request,
                items=[texts[index] for index in paired],
                pair_texts=[pair_texts[index] for index in paired],
            ),
        ),
    ]


def labels_of(model: ServedModel, num_scores: int) -> Sequence[str]:
    """The names of the scores; transformers' names if the model has none."""
    return model.labels or [f"LABEL_{number}" for number in range(num_scores)]


@light_dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyTokensRequest(Work):
    """Texts whose tokens' scores are wanted; never pairs or ids."""

    outputs: OutputKind = OutputKind.TOKEN_LOGITS
    raw_scores: bool = False  # without softmax


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """The tokens of each text, cut to what the model takes, special ones included, with a row of scores for each."""

    tokens: Sequence[Sequence[Token]]  # with places in the whole text
    scored: Embedded  # rows: float32 [num_tokens, labels], with offsets


async def classify_tokens(pipeline: Pipeline, request: ClassifyTokensRequest, trace: Trace) -> ScoredTokens:
    """The engine gets the ids of just the tokens that are returned.

    Raises RequestError; cancelling it drops the work everywhere.
    """
    tokens: list[Sequence[Token]] = []

    async def tokenize(request_class: RequestClass) -> TokenizedTexts:
        whole = request.texts
        texts = await pipeline.shorten(request, whole, request.max_seqlen, request_class)
        asked = TokenizeRequest(model=request.model, items=texts, context=request.context)
        found = await pipeline.token_details(asked, request_class)
        ids, time_slice = [], TimeSlice()
        is_cut = np.zeros(len(found), np.uint8)
        for index, each in enumerate(found):
            kept = fitting(each, request.max_seqlen, request.truncation)
            is_cut[index] = len(kept) < len(each)
            if request.truncation is Truncation.LEFT and is_cut[index]:
                kept = _moved(kept, len(whole[index]) - len(texts[index]))
            tokens.append(kept)
            ids.append([token.token_id for token in kept])
            await time_slice.end_if_over()
        checked = await check_token_ids(
            ids,
            vocab_size=request.model.vocab_size,
            max_seqlen=request.max_seqlen,
            truncation=Truncation.NONE,
        )
        return replace(checked, truncated=is_cut)

    computed = await pipeline.compute(request, trace, tokenize=tokenize)
    scores = computed.results[OutputKind.TOKEN_LOGITS].values
    if not request.raw_scores:
        scores = await activated(scores, Activation.SOFTMAX)  # as transformers' pipeline, whatever the model says
    ids = computed.tokens
    return ScoredTokens(tokens, Embedded(scores, computed.num_tokens, ids.truncated, ids.offsets))


def fitting(tokens: Sequence[Token], max_seqlen: int, truncation: Truncation) -> Sequence[Token]:
    """The tokens that the model takes, the special ones around the text among them; all where truncation is off."""
    num_too_many = len(tokens) - max_seqlen
    if num_too_many <= 0 or truncation is Truncation.NONE:
        return tokens
    inner = [index for index, token in enumerate(tokens) if not token.is_special]
    dropped = set(inner[-num_too_many:] if truncation is Truncation.RIGHT else inner[:num_too_many])
    return [token for index, token in enumerate(tokens) if index not in dropped]


def _moved(tokens: Sequence[Token], skipped: int) -> Sequence[Token]:
    """The tokens with places in the whole text, whose first characters were skipped."""
    return [
        token
        if token.start is None or token.stop is None
        else token._replace(start=token.start + skipped, stop=token.stop + skipped)
        for token in tokens
    ]


class Aggregation(enum.StrEnum):
    """The ways in which tokens become spans."""

    NONE = "none"  # each token is a span
    SIMPLE = "simple"  # neighbours with the same label are one, also within a word
    FIRST = "first"  # a word has the label of its first token
    AVERAGE = "average"  # a word has the label of its tokens' mean scores
    MAX = "max"  # a word has the label of its token with the highest score


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the text, in characters, with its label and the label's score."""

    label: str
    score: float
    start: int
    stop: int


def spans(
    tokens: Sequence[Token], scores: NDArray[np.float32], labels: Sequence[str], aggregation: Aggregation
) -> Iterator[Span]:
    """Yields the entities of one text. Not for Aggregation.NONE.

    tokens  S of them; special ones belong to no span
    scores  float32 [S, labels]
    """
    words = _words(tokens) if aggregation is not Aggregation.SIMPLE else _tokens(tokens)
    for span in _joined(_labelled(tokens, word, scores, labels, aggregation) for word in words):
        if span.label != OUTSIDE:
            yield span


def _tokens(tokens: Sequence[Token]) -> Iterator[list[int]]:
    """Indices of the tokens that are not special, each alone."""
    return ([index] for index, token in enumerate(tokens) if not token.is_special)


def _words(tokens: Sequence[Token]) -> Iterator[list[int]]:
    """The indices of the tokens of each word."""
    word: list[int] = []
    for (index,) in _tokens(tokens):
        if word and not tokens[index].is_subword:
            yield word
            word = []
        word.append(index)
    if word:
        yield word


def _labelled(
    tokens: Sequence[Token],
    word: list[int],
    scores: NDArray[np.float32],
    labels: Sequence[str],
    aggregation: Aggregation,
) -> Span:
    """One word, or one token."""
    match aggregation:
        case Aggregation.AVERAGE if len(word) > 1:
            chosen = scores[word].mean(axis=0)
        case Aggregation.MAX if len(word) > 1:
            chosen = scores[word[int(scores[word].max(axis=1).argmax())]]
        case _:
            chosen = scores[word[0]]
    best = int(chosen.argmax())
    return Span(labels[best], float(chosen[best]), tokens[word[0]].start or 0, tokens[word[-1]].stop or 0)


def _joined(parts: Iterable[Span]) -> Iterator[Span]:
    """Joins neighbours of one kind until the next one begins with B-; their score is the mean."""
    group: list[Span] = []
    for part in parts:
        begins, kind = _tag(part.label)
        if group and (begins or kind != _tag(group[-1].label)[1]):
            yield _span(group)
            group = []
        group.append(part)
    if group:
        yield _span(group)


def _span(group: list[Span]) -> Span:
    # the name of the first, without any prefix: B-, I- or another
    name = group[0].label.split("-", 1)[-1]
    return Span(name, sum(part.score for part in group) / len(group), group[0].start, group[-1].stop)


def _tag(label: str) -> tuple[bool, str]:
    """Whether it begins an entity, and of which kind."""
    if label.startswith(("B-", "I-")):
        return label.startswith("B-"), label[2:]
    return False, label  # without a prefix it continues the entity before it

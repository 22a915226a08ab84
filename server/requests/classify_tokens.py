"""Scores of single tokens, and the tokens that they are of. Knows no dialect."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.model.tasks import Activation
from engine.types import OutputKind
from server.requests.classify import activated
from server.requests.pipeline import Embedded, Pipeline, Work
from server.requests.tokenize import TokenizeRequest
from server.requests.trace import Trace
from tokenizer_pool.details import Token
from tokenizer_pool.messages import Truncation
from tokenizer_pool.pieces import cap
from tokenizer_pool.token_ids import TokenizedTexts, check_token_ids
from wire.vocabulary import RequestClass

_TEXTS_A_SLICE = 16  # are cut to length before the event loop gets its turn


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """The very ids whose tokens are handed out go to the engine.

    Raises RequestError; cancelling it drops the work everywhere.
    """
    tokens: list[Sequence[Token]] = []

    async def tokenize(request_class: RequestClass) -> TokenizedTexts:
        whole, num_characters = request.texts or (), trace.num_characters
        texts, capped = cap(whole, max_seqlen=request.model.max_seqlen, truncation=request.truncation)
        found = await pipeline.tokens.tokenize(_question(request, texts, request_class), trace)
        trace.num_characters = num_characters  # not those of what is left of the texts
        ids = []
        is_cut = np.zeros(len(found), np.uint8)
        is_cut[capped] = 1
        for index, each in enumerate(found):
            kept = fitting(each, request.model.max_seqlen, request.truncation)
            is_cut[index] |= len(kept) < len(each)
            if request.truncation is Truncation.LEFT and is_cut[index]:
                kept = _moved(kept, len(whole[index]) - len(texts[index]))
            tokens.append(kept)
            ids.append([token.token_id for token in kept])
            if index % _TEXTS_A_SLICE == 0:
                await asyncio.sleep(0)
        checked = await check_token_ids(
            ids,
            vocab_size=request.model.vocab_size,
            max_seqlen=request.model.max_seqlen,
            truncation=Truncation.NONE,
        )
        return replace(checked, truncated=is_cut)

    computed = await pipeline.compute(request, trace, tokenize=tokenize)
    scores = computed.results[OutputKind.TOKEN_LOGITS].values
    if not request.raw_scores:
        scores = await activated(scores, Activation.SOFTMAX)  # as transformers' pipeline, whatever the model says
    ids = computed.tokens
    return ScoredTokens(tokens, Embedded(scores, computed.num_tokens, ids.truncated, ids.offsets))


def _question(request: ClassifyTokensRequest, texts: Sequence[str], request_class: RequestClass) -> TokenizeRequest:
    return TokenizeRequest(
        model=request.model,
        texts=texts,
        request_class=request_class,
        field=request.field,
        is_single=request.is_single,
    )


def fitting(tokens: Sequence[Token], max_seqlen: int, truncation: Truncation) -> Sequence[Token]:
    """As many tokens as the model takes, the special ones around the text among them; all where truncation is off."""
    num_too_many = len(tokens) - max_seqlen
    if num_too_many <= 0 or truncation is Truncation.NONE:
        return tokens
    inner = [index for index, token in enumerate(tokens) if not token.is_special]
    dropped = set(inner[-num_too_many:] if truncation is Truncation.RIGHT else inner[:num_too_many])
    return [token for index, token in enumerate(tokens) if index not in dropped]


def _moved(tokens: Sequence[Token], skipped: int) -> Sequence[Token]:
    """With places in the whole text, whose first characters were skipped."""
    return [
        token
        if token.start is None or token.stop is None
        else token._replace(start=token.start + skipped, stop=token.stop + skipped)
        for token in tokens
    ]

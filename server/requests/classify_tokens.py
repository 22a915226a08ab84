"""Scores of single tokens, with the tokens. Knows no dialect."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.model.tasks import Activation
from engine.types import OutputKind
from server.requests.activation import activated
from server.requests.pipeline import Pipeline
from server.requests.time_slices import TimeSlice
from server.requests.trace import Trace
from server.requests.work import Embedded, TokenizeRequest, Work
from tokenizer_pool.details import Token
from tokenizer_pool.messages import Truncation
from tokenizer_pool.token_ids import TokenizedTexts, check_token_ids
from wire.vocabulary import RequestClass


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
    """The engine gets the ids of just the tokens that are returned.

    Raises RequestError; cancelling it drops the work everywhere.
    """
    tokens: list[Sequence[Token]] = []

    async def tokenize(request_class: RequestClass) -> TokenizedTexts:
        whole = request.texts or ()
        texts = await pipeline.shorten(request, whole, request.max_seqlen, request_class)
        found = await pipeline.token_details(TokenizeRequest(model=request.model, texts=texts), request_class)
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

"""Cuts documents to a number of tokens of their own, before a query or a template is put around them.

The tokenizer pool cuts what is too long for the model as a whole. Here it is asked for the tokens of the documents that
may have too many, and a document's text ends where the last token ends that may stay.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from server.requests.pipeline import Pipeline
from server.requests.work import TokenizeRequest, Work
from tokenizer_pool.client import MAX_DETAIL_CHARS
from tokenizer_pool.details import Token
from tokenizer_pool.long_texts.shortening import LONG_TEXT_CHARS
from tokenizer_pool.messages import TextRefused, Truncation
from tokenizer_pool.token_ids import TokenizedTexts
from wire.vocabulary import RequestClass


async def tokenize_cut(
    pipeline: Pipeline, request: Work, max_tokens: int, request_class: RequestClass, *, key: str = ""
) -> TokenizedTexts:
    """Ids of pairs, or of queries and documents, each document with at most `max_tokens` tokens of its text.

    Raises TextRefused with the index in the request.
    """
    texts = list(request.texts or ())
    first = 0 if request.pair_texts else request.num_queries  # the place of the first document
    documents = list(request.pair_texts) or texts[first:]
    is_cut = np.zeros(len(documents), np.uint8)
    shortened = await _shortened(pipeline, request, documents, first, max_tokens, request_class)
    for places in _groups(documents, shortened, max_tokens):
        try:
            kept = await _cut(pipeline, request, [shortened[place] for place in places], max_tokens, request_class)
        except TextRefused as refused:
            is_one = refused.index >= 0 or len(places) == 1
            refused.index = first + places[max(refused.index, 0)] if is_one else -1
            raise
        for place, text in zip(places, kept, strict=True):
            is_cut[place], documents[place] = len(text) < len(documents[place]), text
    if request.pair_texts:
        request = replace(request, pair_texts=documents)
    else:
        request = replace(request, texts=[*texts[:first], *documents])
    tokens = await pipeline.token_ids(request, request_class, key=key)
    truncated = tokens.truncated.copy()
    truncated[first:] |= is_cut
    return replace(tokens, truncated=truncated)


async def _shortened(
    pipeline: Pipeline, request: Work, documents: list[str], first: int, max_tokens: int, request_class: RequestClass
) -> Sequence[str]:
    """Long documents that have too many tokens cut down to a few more. Raises TextRefused."""
    try:
        return await pipeline.shorten(request, documents, max_tokens, request_class)
    except TextRefused as refused:
        refused.index += first
        raise


def _groups(documents: Sequence[str], shortened: Sequence[str], max_tokens: int) -> Iterator[list[int]]:
    """Places of documents that may have too many tokens, in groups that the tokenizer pool takes at once.

    A character that is not ASCII may become several tokens.
    """
    group: list[int] = []
    num_chars = 0
    for place, text in enumerate(shortened):
        is_counted = len(text) > LONG_TEXT_CHARS and len(text) == len(documents[place])
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
    pipeline: Pipeline, request: Work, documents: Sequence[str], max_tokens: int, request_class: RequestClass
) -> list[str]:
    """What stays of each document. Raises TextRefused with the index in `documents`."""
    asked = TokenizeRequest(model=request.model, texts=documents, add_special_tokens=False)
    found = await pipeline.token_details(asked, request_class)
    is_left = request.truncation is Truncation.LEFT
    return [_kept(text, tokens, max_tokens, is_left=is_left) for text, tokens in zip(documents, found, strict=True)]


def _kept(text: str, tokens: Sequence[Token], max_tokens: int, *, is_left: bool) -> str:
    """A character that would be split between two tokens goes."""
    if len(tokens) <= max_tokens:
        return text
    if is_left:
        return text[max(tokens[-max_tokens].start or 0, tokens[-max_tokens - 1].stop or 0) :]
    return text[: min(tokens[max_tokens - 1].stop or 0, tokens[max_tokens].start or 0)]

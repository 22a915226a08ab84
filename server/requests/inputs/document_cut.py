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
from tokenizer_pool.messages import TextRefused, Truncation
from tokenizer_pool.pieces import MAX_CHARS_PER_TOKEN
from tokenizer_pool.token_ids import TokenizedTexts
from wire.vocabulary import RequestClass


async def tokenize_cut(
    pipeline: Pipeline, request: Work, max_tokens: int, request_class: RequestClass
) -> TokenizedTexts:
    """Ids of pairs, or of queries and documents, each document with at most `max_tokens` tokens of its text.

    Raises TextRefused with the index in the request.
    """
    texts = list(request.texts or ())
    first = 0 if request.pair_texts else request.num_queries  # the place of the first document
    documents = list(request.pair_texts) or texts[first:]
    is_cut = np.zeros(len(documents), np.uint8)
    for places in _groups(documents, max_tokens):
        try:
            kept = await _cut(pipeline, request, [documents[place] for place in places], max_tokens, request_class)
        except TextRefused as refused:
            index = first + places[refused.index] if refused.index >= 0 else -1
            raise TextRefused(
                refused.reason, index, num_tokens=refused.num_tokens, max_tokens=refused.max_tokens
            ) from None
        for place, text in zip(places, kept, strict=True):
            is_cut[place], documents[place] = len(text) < len(documents[place]), text
    if request.pair_texts:
        request = replace(request, pair_texts=documents)
    else:
        request = replace(request, texts=[*texts[:first], *documents])
    tokens = await pipeline.token_ids(request, request_class)
    truncated = tokens.truncated.copy()
    truncated[first:] |= is_cut
    return replace(tokens, truncated=truncated)


def _groups(documents: Sequence[str], max_tokens: int) -> Iterator[list[int]]:
    """Places of documents that may have too many tokens, in groups that the tokenizer pool takes at once.

    A character that is not ASCII may become several tokens.
    """
    group: list[int] = []
    num_chars = 0
    for place, text in enumerate(documents):
        if len(text) < max_tokens and text.isascii():
            continue
        more = min(len(text), _max_chars(max_tokens))
        if group and num_chars + more > MAX_DETAIL_CHARS:
            yield group
            group, num_chars = [], 0
        group.append(place)
        num_chars += more
    if group:
        yield group


def _max_chars(max_tokens: int) -> int:
    """What is worth looking at of a document."""
    return min(MAX_CHARS_PER_TOKEN * max_tokens, MAX_DETAIL_CHARS)


async def _cut(
    pipeline: Pipeline, request: Work, documents: Sequence[str], max_tokens: int, request_class: RequestClass
) -> list[str]:
    """What stays of each document. Raises TextRefused with the index in `documents`."""
    is_left, max_chars = request.truncation is Truncation.LEFT, _max_chars(max_tokens)
    texts = [text[-max_chars:] if is_left else text[:max_chars] for text in documents]
    asked = TokenizeRequest(model=request.model, texts=texts, add_special_tokens=False)
    found = await pipeline.token_details(asked, request_class)
    return [_kept(text, tokens, max_tokens, is_left=is_left) for text, tokens in zip(texts, found, strict=True)]


def _kept(text: str, tokens: Sequence[Token], max_tokens: int, *, is_left: bool) -> str:
    """A character that would be split between two tokens goes."""
    if len(tokens) <= max_tokens:
        return text
    if is_left:
        return text[max(tokens[-max_tokens].start or 0, tokens[-max_tokens - 1].stop or 0) :]
    return text[: min(tokens[max_tokens - 1].stop or 0, tokens[max_tokens].start or 0)]

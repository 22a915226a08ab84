"""Late chunking: the texts of a request are the chunks of one, which is computed as a whole.

Each chunk's row is the mean of the rows of its tokens, so it knows of the chunks around it. Special tokens and the
prompt are in no chunk. https://arxiv.org/abs/2409.04701
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from engine.types import OutputKind
from server.requests.errors import InvalidRequest, UnsupportedTask
from server.requests.inputs.framed import Framed, InSequences, framed
from server.requests.pipeline import Pipeline
from server.requests.rows import finish
from server.requests.trace import Trace
from server.requests.work import Embedded, EmbedRequest, TokenizeRequest
from tokenizer_pool.messages import Refusal, TextRefused
from tokenizer_pool.token_ids import TokenizedTexts, offsets_of
from wire.vocabulary import RequestClass

_LEAST_COSINE = 0.999  # between the mean of all tokens and the row: engines may round to bfloat16 in between


async def embed_late_chunks(pipeline: Pipeline, request: EmbedRequest, trace: Trace) -> Embedded:
    """A row for each text. Raises RequestError; cancelling it drops the work everywhere."""
    together = InSequences.of(request, outputs=OutputKind.POOLED | OutputKind.TOKENS)
    offsets: list[int] = []
    computed = await pipeline.compute(together, trace, tokenize=partial(_tokenize, pipeline, together, offsets))
    of_tokens, row = computed.results[OutputKind.TOKENS].values, computed.results[OutputKind.POOLED].values[0]
    if not _is_mean(of_tokens, row):
        raise UnsupportedTask(
            "late_chunking is for models whose row of a text is the mean of its tokens' rows, and this one's is not",
            param="late_chunking",
        )
    sums: NDArray[np.float32] = np.add.reduceat(of_tokens[: offsets[-1]], offsets[:-1])
    rows = sums / np.diff(offsets).astype(np.float32)[:, None]
    return Embedded(finish(rows, request), computed.num_tokens, np.zeros(request.num_items, np.uint8))


def _is_mean(of_tokens: NDArray[np.float32], row: NDArray[np.float32]) -> bool:
    """Whether the model's own row is the mean of those of the tokens [T, D]: no other pooling, no head behind it."""
    if of_tokens.shape[1] != len(row):
        return False
    mean = of_tokens.mean(axis=0)
    lengths = float(np.linalg.norm(mean) * np.linalg.norm(row))
    return float(mean @ row) >= _LEAST_COSINE * lengths


async def _tokenize(
    pipeline: Pipeline, request: InSequences, offsets: list[int], request_class: RequestClass
) -> TokenizedTexts:
    """The ids of all chunks in one sequence. Where they begin, and where the last one ends, is added to `offsets`.

    Raises InvalidRequest and TextRefused.
    """
    chunks = await _chunks(pipeline, request, request_class)
    first = chunks[0]
    contents = [chunk.content for chunk in chunks]
    lengths = [len(content) for content in contents]
    if not all(lengths):
        raise TextRefused(Refusal.EMPTY, lengths.index(0))
    ids = np.concatenate((first.head, *contents, first.tail))
    if len(ids) > request.max_seqlen:
        raise InvalidRequest(
            f"{request.field} has {len(ids)} tokens together, and late_chunking takes {request.max_seqlen} at most",
            param=request.field,
        )
    offsets.extend((offsets_of(np.array(lengths)) + len(first.head)).tolist())
    request.items.append(-1)
    return TokenizedTexts(ids, np.array([0, len(ids)], np.int32), np.zeros(1, np.uint8))


async def _chunks(pipeline: Pipeline, request: InSequences, request_class: RequestClass) -> list[Framed]:
    """All texts; the first one has the prompt before it. Raises TextRefused."""
    assert request.texts is not None, "ids are refused at the edge"
    found: list[Framed] = []
    for texts, prompt in ((request.texts[:1], request.prompt), (request.texts[1:], "")):
        if texts:
            asked = TokenizeRequest(
                model=request.model, texts=texts, prompt=prompt, add_special_tokens=request.add_special_tokens
            )
            try:
                tokens = await pipeline.token_details(asked, request_class)
            except TextRefused as refused:
                refused.index += len(found) if refused.index >= 0 else 0
                raise
            found += await framed(tokens, num_prompt_chars=len(prompt))
    return found

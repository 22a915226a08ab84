"""The inputs that `embedline verify` computes: fixed texts, as texts, pairs, or queries and documents, by our own
tokenizer.

Among them are long texts, which a start can't try because it would take too long. One is just longer than the model's
window, and one is as long as the model takes, or as two CPU cores can compute in some minutes, for the library and for
us.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.fused.quantization import gate_texts
from engine.model.detection.backbone import telling_lengths
from engine.model.model_folder import ModelFolder
from engine.model.tasks import LateInteraction, Task
from engine.selftest.sample_ids import num_layer_parameters
from engine.types import ModelError
from server.requests.given_ids import LETTER, surrounding_ids
from server.requests.late_interaction import Lengths, counted, lengths, shaped
from server.supervisor.model_plan import ModelPlan
from server.supervisor.topology import tokenizer_spec
from tokenizer_pool.messages import Truncation
from tokenizer_pool.tasks import TokenizedTexts
from tokenizer_pool.token_ids import join
from tokenizer_pool.tokenizer import Tokenizer
from wire.tokenizer_files import TokenizerError

_MAX_WORK = 5e12  # products of one sequence
_OF_TEMPLATE = 256  # tokens that a template takes at most; the library does not cut what is around it


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyTexts:
    """N texts, or pairs of them."""

    texts: Sequence[str]
    pair_texts: Sequence[str] = ()
    num_queries: int = 0  # the first of the texts, of a late-interaction model
    longest: str  # how long the longest is, for people
    tokens: TokenizedTexts
    is_compared: NDArray[np.bool_] | None = None  # [T], of each token's row; None = all are


def verify_texts(plan: ModelPlan) -> VerifyTexts:
    """The texts as requests for this model's task have them. Raises ModelError where no tokenizer can be used."""
    texts = list(gate_texts.texts())
    try:
        tokenizer = Tokenizer(tokenizer_spec(plan))
    except TokenizerError as error:
        raise ModelError(str(error)) from None
    folder = plan.folder
    long = long_texts(folder, tokenizer, texts)
    if folder.task is Task.LATE_INTERACTION and folder.late is not None:
        return _queries_and_documents(plan, folder.late, tokenizer, [*texts, *long.texts], longest=long.note)
    pair_texts: list[str] = []
    if folder.task is Task.RERANK:
        pair_texts = [*texts[1:], texts[0], *long.texts]
        texts += texts[: len(long.texts)]  # a short query for each long document
    else:
        texts += long.texts
    prompt = folder.template.instruction if folder.template else plan.default_prompt
    side = plan.truncation or Truncation.RIGHT
    tokens = tokenizer.encode(texts, pair_texts=pair_texts, prompt=prompt, truncation=side)
    return VerifyTexts(texts=texts, pair_texts=pair_texts, tokens=tokens, longest=long.note)


def _queries_and_documents(
    plan: ModelPlan, late: LateInteraction, tokenizer: Tokenizer, texts: list[str], *, longest: str
) -> VerifyTexts:
    """The first half of the texts are queries, the rest documents."""
    num_queries = len(texts) // 2
    prompts, max_seqlen = plan.folder.prompts, plan.folder.max_seqlen
    most = lengths(late, max_seqlen) or Lengths(max_seqlen, max_seqlen)
    pieces: list[TokenizedTexts] = [
        tokenizer.encode(texts[:num_queries], prompt=prompts.get("query", ""), max_tokens=most.query),
        tokenizer.encode(texts[num_queries:], prompt=prompts.get("document", ""), max_tokens=most.document),
    ]
    num_leading = len(surrounding_ids(tokenizer.details([LETTER]).tokens[0]).before) if late.marks_text_start else 1
    tokens = asyncio.run(
        shaped(join(pieces), late, num_queries=num_queries, max_seqlen=max_seqlen, num_leading=num_leading)
    )
    return VerifyTexts(
        texts=texts,
        num_queries=num_queries,
        tokens=tokens,
        is_compared=counted(tokens, late, num_queries=num_queries),
        longest=longest,
    )


@dataclass(frozen=True, slots=True)
class LongTexts:
    """The texts, shortest first."""

    texts: tuple[str, ...]
    note: str  # how long the longest is, for people


def long_texts(folder: ModelFolder, tokenizer: Tokenizer, texts: Sequence[str]) -> LongTexts:
    """Long texts made of these texts. Raises ModelError if config.json can't be read."""
    most = folder.max_seqlen
    is_asked = folder.max_seqlen_source == "--max-input-length"
    longest = most if is_asked or folder.is_static else min(most, _affordable(folder))
    telling = () if folder.is_static else (each for each in telling_lengths(folder.config, most) if each < longest)
    per_char = len(tokenizer.encode(texts).token_ids) / sum(map(len, texts))
    wanted = sorted({*telling, longest - (_OF_TEMPLATE if folder.template else 0)})
    made = tuple(_of_length(texts, math.ceil(length / per_char)) for length in wanted if length > 0)
    rest = "" if longest == most else "; --max-input-length N has one of N"
    return LongTexts(made, f"up to about {longest:,} of {most:,} tokens{rest}")


def _affordable(folder: ModelFolder) -> int:
    """The tokens of a sequence that can be afforded. Attention adds S / 6 h (S tokens, h numbers a row)."""
    tokens_alone = _MAX_WORK / num_layer_parameters(folder)
    # the root of S + S² / 6 h = tokens_alone
    half = 3 * folder.hidden_size
    return max(1, int(math.sqrt(half * half + 2 * half * tokens_alone) - half))


def _of_length(texts: Sequence[str], num_chars: int) -> str:
    joined = " ".join(texts)
    return (joined * (num_chars // len(joined) + 1))[:num_chars]

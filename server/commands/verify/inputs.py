"""What `embedline verify` computes: fixed texts, as texts, pairs, or queries and documents, by our own tokenizer."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.fused.quantization import gate_texts
from engine.model.tasks import LateInteraction, Task
from engine.types import ModelError
from server.commands.verify.long_texts import long_texts
from server.requests.late_interaction import counted, shaped
from server.supervisor.planning.model_plan import ModelPlan
from server.supervisor.planning.topology import tokenizer_spec
from tokenizer_pool.files.config_files import TokenizerError
from tokenizer_pool.messages import TokenizedPiece, Truncation
from tokenizer_pool.token_ids import TokenizedTexts, join
from tokenizer_pool.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """N texts, or pairs of them."""

    texts: Sequence[str]
    pair_texts: Sequence[str] = ()
    num_queries: int = 0  # the first of the texts, of a late-interaction model
    longest: str  # how long the longest is, for people
    tokens: TokenizedTexts
    counts: NDArray[np.bool_] | None = field(default=None)  # [T], of which tokens rows are compared; None = all


def inputs(plan: ModelPlan) -> Inputs:
    """As requests for this model's task have them. Raises ModelError where there is no tokenizer to be used."""
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
    return Inputs(texts=texts, pair_texts=pair_texts, tokens=join([tokens]), longest=long.note)


def _queries_and_documents(
    plan: ModelPlan, late: LateInteraction, tokenizer: Tokenizer, texts: list[str], *, longest: str
) -> Inputs:
    """Half of them are queries."""
    num_queries = len(texts) // 2
    prompts = plan.folder.prompts
    pieces: list[TokenizedPiece] = [
        tokenizer.encode(texts[:num_queries], prompt=prompts.get("query", "")),
        tokenizer.encode(texts[num_queries:], prompt=prompts.get("document", "")),
    ]
    tokens = asyncio.run(
        shaped(
            join(pieces),
            late,
            num_queries=num_queries,
            max_seqlen=plan.folder.max_seqlen,
            truncation=Truncation.RIGHT,
        )
    )
    counts = counted(tokens, late, num_queries=num_queries)
    return Inputs(texts=texts, num_queries=num_queries, tokens=tokens, counts=counts, longest=longest)

"""Scores of texts or of pairs, by models with labels. Knows no dialect."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from engine.model.tasks import Activation
from engine.types import OutputKind
from server.requests.activation import activated, bounded
from server.requests.errors import InvalidRequest
from server.requests.inputs.groups import texts_and_pairs, tokenized
from server.requests.models import ServedModel
from server.requests.pipeline import Pipeline
from server.requests.trace import Trace
from server.requests.work import Embedded, Work
from tokenizer_pool.token_ids import TokenizedTexts
from wire.vocabulary import RequestClass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyRequest(Work):
    """Texts, pairs or lists of ids whose scores are wanted."""

    outputs: OutputKind = OutputKind.LOGITS
    alone: frozenset[int] = frozenset()  # indices of texts without a partner, "" in pair_texts, if others have one
    raw_scores: bool = False  # without an activation
    is_bounded: bool = False  # with softmax or, of one label, sigmoid; otherwise as the model's files say
    activation: Activation | None = None  # instead of all that


async def classify(pipeline: Pipeline, request: ClassifyRequest, trace: Trace) -> Embedded:
    """Scores float32 [items, labels]. Raises RequestError; cancelling it drops the work everywhere."""
    has_pairs = bool(request.pair_texts)
    has_texts_alone = not has_pairs or bool(request.alone)
    if has_texts_alone and request.model.instruction is not None and request.texts is not None:
        raise InvalidRequest(
            f"{request.field} must be pairs: this model scores a query with a document", param=request.field
        )

    async def tokenize(request_class: RequestClass) -> TokenizedTexts:
        ask = partial(pipeline.token_ids, request_class=request_class)
        return await tokenized(texts_and_pairs(request, request.alone), request.num_items, ask)

    computed = await pipeline.compute(request, trace, tokenize=tokenize if has_pairs and has_texts_alone else None)
    scores = computed.results[OutputKind.LOGITS].values
    activation = request.model.activation
    if request.activation is not None:
        scores = await activated(scores, request.activation)
    elif not request.raw_scores:
        has_own = not request.is_bounded and activation is not Activation.SOFTMAX
        scores = await (activated(scores, activation) if has_own else bounded(scores))
    return Embedded(scores, computed.num_tokens, computed.tokens.truncated)


def labels_of(model: ServedModel, num_scores: int) -> Sequence[str]:
    """The names of the scores; transformers' names if the model has none."""
    return model.labels or [f"LABEL_{number}" for number in range(num_scores)]

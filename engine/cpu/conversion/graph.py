"""A transformers model in the form that executors convert: padded ids in, rows out. Knows torch, no executor.

If transformers has a class for the head, that class computes the scores. It gets the attention mask, and the ids in
which it looks for padding.

Shapes: B sequences, S tokens of the longest, V entries of the vocabulary, D numbers a row.
"""

import inspect
from collections.abc import Callable
from typing import Any, assert_never

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.cpu.conversion import tracing
from engine.cpu.minibatch import ATTENTION_MASK, INPUT_IDS, TOKEN_TYPE_IDS
from engine.model.tasks import AnswerScore, SequenceScores, TokenScores, TransformersHead, VocabularyWeights
from engine.types import ModelError

_EXAMPLE_SHAPE = (2, 7)  # with padding, because without it some models leave out their mask
_NO_TOKEN = -1  # never in a text

_Finish = Callable[[Tensor, Tensor | None], Tensor]  # of rows [B, S, D] and the mask [B, S]; None = no padding


class Graph(nn.Module):
    """Gives rows [B, S, D], or [B, D] if a sequence has one."""

    def __init__(self, model: PreTrainedModel, head: TransformersHead | None, *, hides_tokens: bool = False) -> None:
        """`model`: the class with the head, or the bare transformer if there is none. `hides_tokens`: tokens other than
        padding can be masked. Raises ModelError.
        """
        super().__init__()
        self.model = model
        self.is_per_token = head is None or isinstance(head, TokenScores)
        self.pad_id = _pad_of_scores(model) if isinstance(head, SequenceScores) else _known_pad(model) or 0
        if model.config._attn_implementation == "sdpa":
            tracing.register()
            model.set_attn_implementation(tracing.TRACED_WITH_HIDDEN if hides_tokens else tracing.TRACED)
        # A model without a table of token types, such as GPT-2, would take their zeros for token 0.
        self.takes_types = _takes(model, TOKEN_TYPE_IDS) and bool(getattr(model.config, "type_vocab_size", 0))
        self._fixed = {"use_cache": False} if _takes(model, "use_cache") else {}
        self._finish = _finish(model, head)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """The rows of a padded mini-batch; all arguments are int64 [B, S]."""
        types = {TOKEN_TYPE_IDS: token_type_ids} if self.takes_types else {}
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, **types, **self._fixed)
        rows: Tensor = output.logits if "logits" in output else output.last_hidden_state
        return self._finish(rows, attention_mask) if self._finish else rows

    def example(self) -> dict[str, Tensor]:
        """Inputs for tracing, by name."""
        mask = torch.ones(_EXAMPLE_SHAPE, dtype=torch.int64)
        mask[1, 5:] = 0
        vocab_size = self.model.config.get_text_config().vocab_size
        ids = torch.arange(mask.numel()).reshape(_EXAMPLE_SHAPE) % vocab_size
        types = {TOKEN_TYPE_IDS: torch.zeros_like(mask)} if self.takes_types else {}
        return {INPUT_IDS: ids, ATTENTION_MASK: mask, **types}


def _takes(model: PreTrainedModel, argument: str) -> bool:
    return argument in inspect.signature(model.forward).parameters


def _finish(model: PreTrainedModel, head: TransformersHead | None) -> _Finish | None:
    match head:
        case VocabularyWeights():
            return _vocabulary_weights(head)
        case AnswerScore():
            _keep_two_rows(model, head)
            return _answer_score
        case SequenceScores() | TokenScores() | None:
            return None
        case _:
            assert_never(head)


def _pad_of_scores(model: PreTrainedModel) -> int:
    """The id that the class takes for padding: a decoder's scores are those of the last token with another id.

    If the model has no such id, or its table lacks it, a number that is no token is used. Then each token counts, as in
    a sequence alone.
    """
    found = _known_pad(model)
    if found is not None:
        return found
    model.config.get_text_config().pad_token_id = _NO_TOKEN
    model.base_model.register_forward_pre_hook(_with_tokens_alone, with_kwargs=True)
    return _NO_TOKEN


def _known_pad(model: PreTrainedModel) -> int | None:
    """The id of config.json, if the model's table has it."""
    config = model.config.get_text_config()
    found = config.pad_token_id
    return found if isinstance(found, int) and 0 <= found < config.vocab_size else None


def _with_tokens_alone(_: nn.Module, positional: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Replace _NO_TOKEN, for which the transformer has no row. The rows of padding are masked."""
    if positional:
        ids, *others = positional
        return (ids.clamp(min=0), *others), named
    return (), {**named, INPUT_IDS: named[INPUT_IDS].clamp(min=0)}


def _vocabulary_weights(head: VocabularyWeights) -> _Finish:
    """[B, V] of the scores [B, S, V]. The activation is monotonic, so the maximum may be taken first."""

    def activated(scores: Tensor) -> Tensor:
        weights = scores.relu().log1p()
        return weights.log1p() if head.activation == "log1p_relu" else weights

    def finish(scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            scores = scores.masked_fill(mask[:, :, None] == 0, 0.0)
        return activated(scores.amax(dim=1)) if head.pooling == "max" else activated(scores).sum(dim=1)

    return finish


def _keep_two_rows(model: PreTrainedModel, head: AnswerScore) -> None:
    """Drop all other rows of the output embedding. What follows it in the class, such as Gemma 2's softcap, stays."""
    whole = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if not isinstance(whole, nn.Linear):
        raise ModelError(f"the class of {model.config.model_type!r} has no output embedding to take rows from")
    ids = [head.yes_id] if head.no_id is None else [head.yes_id, head.no_id]
    if not all(0 <= token_id < len(whole.weight) for token_id in ids):
        raise ModelError(f"the answers' token ids are not among the {len(whole.weight)} that the model gives scores of")
    kept = nn.Linear(whole.in_features, len(ids), bias=whole.bias is not None)
    kept.weight = nn.Parameter(whole.weight[ids].clone(), requires_grad=False)
    if whole.bias is not None:
        kept.bias = nn.Parameter(whole.bias[ids].clone(), requires_grad=False)
    model.set_output_embeddings(kept)  # type: ignore[no-untyped-call]


def _answer_score(scores: Tensor, mask: Tensor | None) -> Tensor:
    """[B, 1] of the scores [B, S, 2] of yes and no, or of yes alone."""
    if mask is None:
        of_last = scores[:, -1]
    else:
        of_last = scores[torch.arange(scores.shape[0], device=scores.device), mask.sum(dim=1) - 1]
    return of_last if of_last.shape[1] == 1 else of_last[:, :1] - of_last[:, 1:]

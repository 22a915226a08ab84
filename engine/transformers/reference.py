"""The reference for the self-test: the sequences of the trial, run one at a time through the library's own forward.

Shapes: T tokens of all sequences, B sequences, S tokens of one, D numbers a row, L raw scores, V vocabulary entries.
"""

import inspect
from dataclasses import dataclass
from typing import Any, assert_never

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.machine.failures import one_line
from engine.model.model_folder import ModelFolder
from engine.model.tasks import AnswerScore, SequenceScores, TokenScores, TransformersHead, VocabularyWeights
from engine.rows.pooling_torch import on_device
from engine.selftest.comparison import batch_of, not_finite
from engine.selftest.sample_ids import Sequences
from engine.selftest.trial import trial
from engine.types import Batch, ModelError, OutputKind


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores that a model's own head gives."""

    values: Tensor  # float32: [B, L], of token scores [T, L], of vocabulary weights [B, V]
    scale: float  # largest absolute score of the class itself, before subtracting or pooling


@dataclass(frozen=True, slots=True)
class Reference:
    """All tensors are where the model is."""

    batch: Batch
    token_rows: Tensor  # the last hidden states [T, D] in the model's type
    scores: dict[OutputKind, Scores]  # of the library's own head, if there is one
    notes: tuple[str, ...] = ()  # what the batch leaves out


def run_alone(model: PreTrainedModel, folder: ModelFolder) -> Reference:
    """Run one sequence at a time through the model as it was loaded. Raises ModelError if it fails or overflows.

    model: see `loading.load_model`.
    """
    tried = trial(folder, kind=model.device.type)
    head = next((head for head in folder.heads if isinstance(head, TransformersHead)), None)
    if isinstance(head, AnswerScore):
        _check_entries(head, folder)
    try:
        rows, scores = _run(model, head, tried.sequences)
    except Exception as error:  # models raise anything on input that they do not support
        raise ModelError(f"the model does not run on token ids alone: {one_line(error)}") from error
    if not all(tensor.isfinite().all() for tensor in (rows, *(each.values for each in scores))):
        raise not_finite("transformers", str(rows.dtype).removeprefix("torch."))
    own = {} if head is None else {head.output: _joined(scores)}
    return Reference(batch_of(tried.sequences), rows, own, tried.notes)


def _check_entries(head: AnswerScore, folder: ModelFolder) -> None:
    largest = max(entries_of(head))
    if largest >= folder.vocab_size:
        raise ModelError(f"the answer token {largest} is not among the model's {folder.vocab_size} tokens")


@torch.inference_mode()
def _run(model: PreTrainedModel, head: TransformersHead | None, sequences: Sequences) -> tuple[Tensor, list[Scores]]:
    """Token rows of all sequences, and the scores of each if there is a head."""
    rows: list[Tensor] = []
    scores: list[Scores] = []
    # one token's scores are needed; those of all tokens take a lot of memory
    fixed = {"logits_to_keep": 1} if isinstance(head, AnswerScore) and _takes(model, "logits_to_keep") else {}
    runs = model.base_model if head is None else model

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        rows.append(output.last_hidden_state[0])

    handle = model.base_model.register_forward_hook(keep)
    try:
        for token_ids in sequences:
            output = runs(input_ids=on_device(token_ids, model.device)[None], **fixed)
            if head is not None:
                scores.append(_scores(head, output.logits.float()))
    finally:
        handle.remove()
    return torch.cat(rows), scores


def _scores(head: TransformersHead, logits: Tensor) -> Scores:
    """The scores of one sequence. Logits are float32 [1, L], or [1, S, L] of heads that score each token."""
    match head:
        case AnswerScore():
            wanted = logits[:, -1, entries_of(head)]
            return Scores(answer_score(wanted), wanted.abs().max().item())
        case VocabularyWeights():
            weights = logits[0].relu().log1p()
            weights = weights.log1p() if head.activation == "log1p_relu" else weights
            weights = weights.sum(dim=0) if head.pooling == "sum" else weights.amax(dim=0)
            return Scores(weights[None], weights.max().item())
        case SequenceScores() | TokenScores():
            values = logits if logits.dim() == 2 else logits[0]
            return Scores(values, values.abs().max().item())
        case _:
            assert_never(head)


def _joined(scores: list[Scores]) -> Scores:
    return Scores(torch.cat([each.values for each in scores]), max(each.scale for each in scores))


def entries_of(head: AnswerScore) -> list[int]:
    """The vocabulary ids whose scores `answer_score` takes."""
    return [head.yes_id] if head.no_id is None else [head.yes_id, head.no_id]


def answer_score(scores: Tensor) -> Tensor:
    """[B, 1]: yes minus no, of [B, 2]; or yes alone, of [B, 1]."""
    return scores[:, :1] - scores[:, 1:].sum(dim=1, keepdim=True)


def _takes(model: PreTrainedModel, argument: str) -> bool:
    return argument in inspect.signature(model.forward).parameters

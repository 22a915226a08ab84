"""A few arbitrary sequences, and what the library's own forward makes of each alone: what all else is held against.

Shapes: T tokens of all sequences, B sequences, S tokens of one, D numbers a row, L raw scores, V vocabulary entries.
"""

import inspect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.failures import not_finite, one_line
from engine.model.model_folder import ModelFolder
from engine.model.tasks import AnswerScore, Head, SequenceScores, TokenScores, VocabularyWeights
from engine.rows.transfer import on_device
from engine.types import Batch, ModelError, OutputKind

_SEQLENS = (5, 17, 1, 5, 9, 30)  # equal lengths are there on purpose, and a sum that `forward` rounds up
_NUM_SPECIAL = 4  # the first ids are often padding and markers
_KINDS: dict[type[Head], OutputKind] = {  # of heads that are the library's
    SequenceScores: OutputKind.LOGITS,
    AnswerScore: OutputKind.LOGITS,
    TokenScores: OutputKind.TOKEN_LOGITS,
    VocabularyWeights: OutputKind.SPARSE,
}


@dataclass(frozen=True, slots=True)
class Scores:
    """Of a model's own head."""

    values: Tensor  # float32: [B, L], of token scores [T, L], of vocabulary weights [B, V]
    scale: float  # largest absolute value of what the class itself gives for them


@dataclass(frozen=True, slots=True)
class Trial:
    """All tensors are where the model is."""

    batch: Batch
    token_rows: Tensor  # the last hidden states [T, D] in the model's type
    scores: dict[OutputKind, Scores]  # of the head that is the library's, if there is one


def run_alone(model: PreTrainedModel, folder: ModelFolder) -> Trial:
    """One sequence at a time through the model as it was loaded. Raises ModelError where it does not run or overflows.

    model: see `loading.load_model`.
    """
    batch = _sample(folder)
    head = next((head for head in folder.heads if type(head) in _KINDS), None)
    if isinstance(head, AnswerScore):
        _check_entries(head, folder)
    try:
        rows, scores = _run(model, head, batch)
    except Exception as error:  # whatever a model makes of input that it was not written for
        raise ModelError(f"the model does not run on token ids alone: {one_line(error)}") from error
    if not all(tensor.isfinite().all() for tensor in (rows, *(each.values for each in scores))):
        raise not_finite("transformers", str(rows.dtype).removeprefix("torch."))
    return Trial(batch, rows, {} if head is None else {_KINDS[type(head)]: _joined(scores)})


def _check_entries(head: AnswerScore, folder: ModelFolder) -> None:
    largest = max(entries_of(head))
    if largest >= folder.vocab_size:
        raise ModelError(f"token {largest} is to be scored, and the model has {folder.vocab_size}")


@torch.inference_mode()
def _run(model: PreTrainedModel, head: Head | None, batch: Batch) -> tuple[Tensor, list[Scores]]:
    """Token rows of all sequences, and the scores of each where there is a head."""
    rows: list[Tensor] = []
    scores: list[Scores] = []
    # a whole vocabulary for each token is a lot, where one token is wanted
    fixed = {"logits_to_keep": 1} if isinstance(head, AnswerScore) and _takes(model, "logits_to_keep") else {}
    runs = model.base_model if head is None else model

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        rows.append(output.last_hidden_state[0])

    handle = model.base_model.register_forward_hook(keep)
    try:
        for token_ids in _sequences(batch):
            output = runs(input_ids=on_device(token_ids, model.device)[None], **fixed)
            if head is not None:
                scores.append(_scores(head, output.logits.float()))
    finally:
        handle.remove()
    return torch.cat(rows), scores


def _scores(head: Head, logits: Tensor) -> Scores:
    """Of one sequence, float32: logits [1, L], of those that score each token [1, S, L]."""
    match head:
        case AnswerScore():
            wanted = logits[:, -1, entries_of(head)]
            return Scores(answer_score(wanted), wanted.abs().max().item())
        case VocabularyWeights():
            weights = logits[0].relu().log1p()
            weights = weights.log1p() if head.activation == "log1p_relu" else weights
            weights = weights.sum(dim=0) if head.pooling == "sum" else weights.amax(dim=0)
            return Scores(weights[None], weights.max().item())
    values = logits if logits.dim() == 2 else logits[0]
    return Scores(values, values.abs().max().item())


def _joined(scores: list[Scores]) -> Scores:
    return Scores(torch.cat([each.values for each in scores]), max(each.scale for each in scores))


def entries_of(head: AnswerScore) -> list[int]:
    """Of the vocabulary, those that `answer_score` takes."""
    return [head.yes_id] if head.no_id is None else [head.yes_id, head.no_id]


def answer_score(scores: Tensor) -> Tensor:
    """[B, 1]: yes less no, of [B, 2]; or yes alone, of [B, 1]."""
    return scores[:, :1] - scores[:, 1:].sum(dim=1, keepdim=True)


def _sequences(batch: Batch) -> Iterator[NDArray[np.int32]]:
    for start, end in itertools.pairwise(batch.cu_seqlens.tolist()):
        yield batch.token_ids[start:end]


def _sample(folder: ModelFolder) -> Batch:
    """Arbitrary ids, the same at each start."""
    seqlens = np.minimum(_SEQLENS, folder.max_seqlen)
    cu_seqlens = np.concatenate(([0], np.cumsum(seqlens))).astype(np.int32)
    first = min(_NUM_SPECIAL, folder.vocab_size - 1)
    token_ids = np.random.default_rng(seed=0).integers(first, folder.vocab_size, cu_seqlens[-1], np.int32)
    return Batch("", OutputKind.POOLED, token_ids, cu_seqlens)


def _takes(model: PreTrainedModel, argument: str) -> bool:
    return argument in inspect.signature(model.forward).parameters

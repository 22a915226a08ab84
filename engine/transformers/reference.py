"""The reference for the self-test: the sequences of the trial, run one at a time through the library's own forward.

Each is run as if it were the first, so that its rows are those of the class alone whatever it keeps between runs.
`State` puts that back: BigBird turns its sparse attention off for good after one short sequence, and dynamic rotary
angles stay those of the longest sequence so far.

Shapes: T tokens of all sequences, B sequences, S tokens of one, D numbers a row, L raw scores, V vocabulary entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from engine.machine.failures import one_line
from engine.model.model_folder import ModelFolder
from engine.model.tasks import AnswerScore, SequenceScores, TokenScores, TransformersHead, VocabularyWeights
from engine.rows.with_torch import on_device
from engine.selftest.comparison import agreement, batch_of, is_near, not_finite
from engine.selftest.sample_ids import NUM_VICTIMS, Sequences, Trial
from engine.transformers.loading import takes
from engine.transformers.lora import adapted
from engine.types import Batch, ModelError, OutputKind

_NOT_RUN = "the model's class does not run on the token ids {}: a text that spells one out is refused"

_ABSENT = object()
_PLAIN = (bool, int, float, str, bytes, set, frozenset, type(None))
# Attributes that torch holds in modules beside their content, and what transformers has warned of.
_PASSED_OVER = (nn.Module().__dict__.keys() - {"_parameters", "_buffers", "_modules"}) | {"warnings_issued"}
_LONG_ROPE = "long_inv_freq"  # ends the names of tables that are made at the first run and never change


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores that a model's own head gives."""

    values: Tensor  # float32: [B, L], of token scores [T, L], of vocabulary weights [B, V]
    scale: float  # largest absolute score of the class itself, before subtracting or pooling


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference run; all tensors are where the model is."""

    batch: Batch
    token_rows: Tensor  # the last hidden states [T, D] in the model's type
    scores: dict[OutputKind, Scores]  # of the library's own head, if there is one
    beside: tuple[Batch, ...] = ()  # its first sequences with neighbours; only the rows of the former are known
    notes: tuple[str, ...] = ()  # what the batch leaves out
    keeps_state: bool = False  # whether the model holds something else after a run than before
    adapted: "Reference | None" = None  # of sequences with adapters, if the model has some

    @property
    def dtype(self) -> str:
        """A key of TOLERANCE."""
        return str(self.token_rows.dtype).removeprefix("torch.")


def run_alone(model: PreTrainedModel, folder: ModelFolder, tried: Trial) -> Reference:
    """Run one sequence at a time through the model as it was loaded. Raises ModelError if it fails or overflows, or
    gives a sequence other rows when it runs again.

    model: see `loading.load_model`. It holds afterwards what it held before.
    """
    head = next((head for head in folder.heads if isinstance(head, TransformersHead)), None)
    if isinstance(head, AnswerScore):
        _check_entries(head, folder)
    alone = _Alone(model, head)
    try:
        runs = [alone(sequence) for sequence in tried.sequences]
        special, refused = _special_runs(alone, tried.special)
        again = alone(tried.sequences[0])  # after longer ones
    except Exception as error:  # models raise anything on input that they do not support
        raise ModelError(f"the model does not run on token ids alone: {one_line(error)}") from error
    if not all(run.is_finite for run in runs):
        raise not_finite("transformers", runs[0].dtype)
    _check_same(again, runs[0])
    runs += special
    victims = [run.token_ids for run in runs[:NUM_VICTIMS]]
    neighbours = [[each for each in batch if each[1] not in refused] for batch in tried.neighbours]
    if runs[0].dtype == "float32":  # which shows a leak of a small share of the row
        neighbours = [[each for batch in neighbours for each in batch]]
    return Reference(
        batch_of([run.token_ids for run in runs]),
        torch.cat([run.rows for run in runs]),
        {} if head is None else {head.output: _joined([run.scores for run in runs if run.scores is not None])},
        tuple(batch_of([*victims, *batch]) for batch in neighbours if batch),
        (*tried.notes, *([_NOT_RUN.format(sorted(refused))] if refused else ())),
        alone.keeps_state,
    )


def run_adapted(
    model: PreTrainedModel, folder: ModelFolder, sequences: Sequences, numbers: NDArray[np.int32]
) -> Reference:
    """The same of sequences with the adapters of these numbers, without scores. Raises ModelError."""
    alone, rows = _Alone(model, None), []
    for sequence, number in zip(sequences, numbers, strict=True):
        try:
            with adapted(np.full(len(sequence), number, np.int32)):
                run = alone(sequence)
        except Exception as error:  # layers may be used in a way that has no adapters
            raise ModelError(f"the model does not run with adapters: {one_line(error)}") from error
        if not run.is_finite:
            name = folder.loras[number - 1].name if number else "none"
            raise ModelError(f"with the adapter {name!r}, {not_finite('transformers', run.dtype)}")
        rows.append(run.rows)
    return Reference(replace(batch_of(sequences), adapters=numbers), torch.cat(rows), {})


@dataclass(frozen=True, slots=True)
class _OneRun:
    token_ids: NDArray[np.int32]
    rows: Tensor  # [S, D]
    scores: Scores | None

    @property
    def dtype(self) -> str:
        return str(self.rows.dtype).removeprefix("torch.")

    @property
    def is_finite(self) -> bool:
        return all(
            tensor.isfinite().all() for tensor in (self.rows, *([] if self.scores is None else [self.scores.values]))
        )


class _Alone:
    """Runs a sequence as if it were the first."""

    def __init__(self, model: PreTrainedModel, head: TransformersHead | None) -> None:
        self._base, self._device, self._head = model.base_model, model.device, head
        self._runs = model.base_model if head is None else model
        self._state = State(model)
        self._takes_mask = takes(model, "attention_mask")
        self.keeps_state = False
        # one token's scores are needed; those of all tokens take a lot of memory
        self._fixed = {"logits_to_keep": 1} if isinstance(head, AnswerScore) and takes(model, "logits_to_keep") else {}

    @torch.inference_mode()
    def __call__(self, token_ids: NDArray[np.int32]) -> _OneRun:
        rows: list[Tensor] = []

        def keep(_: nn.Module, __: Any, output: Any) -> None:
            rows.append(output.last_hidden_state[0])

        handle = self._base.register_forward_hook(keep)
        try:
            ids = on_device(token_ids, self._device)[None]
            # without one, some classes (XLM) take each padding id for padding
            mask = {"attention_mask": torch.ones_like(ids)} if self._takes_mask else {}
            output = self._runs(input_ids=ids, **mask, **self._fixed)
        finally:
            handle.remove()
            self.keeps_state |= self._state.restore()
        return _OneRun(token_ids, rows[0], None if self._head is None else _scores(self._head, output.logits.float()))


def _special_runs(alone: _Alone, sequences: Sequences) -> tuple[list[_OneRun], set[int]]:
    """Special ids that the class can run, and those that it can't: they are refused or not finite in a text, too."""
    runs, refused = [], set()
    for sequence in sequences:
        run = _tried(alone, sequence)
        singly = [] if run else [sequence[place - 1 : place + 2] for place in range(1, len(sequence), 2)]
        found = [(each, _tried(alone, each)) for each in singly]
        runs += [each for each in (run, *(one for _, one in found)) if each]
        refused |= {int(each[1]) for each, one in found if one is None}
    return runs, refused


def _tried(alone: _Alone, sequence: NDArray[np.int32]) -> _OneRun | None:
    try:
        run = alone(sequence)
    except Exception:  # an id may stand for an image, for example
        return None
    return run if run.is_finite else None


def _check_same(again: _OneRun, first: _OneRun) -> None:
    found = agreement(again.rows.float().cpu().numpy(), first.rows.float().cpu().numpy(), dtype=first.dtype)
    if not is_near(found, dtype=first.dtype):
        raise ModelError(
            f"transformers' class gives a text other rows when it runs again, so what it keeps from one text changes "
            f"the next: {found.in_words}"
        )


def _check_entries(head: AnswerScore, folder: ModelFolder) -> None:
    largest = max(entries_of(head))
    if largest >= folder.vocab_size:
        raise ModelError(f"the answer token {largest} is not among the model's {folder.vocab_size} tokens")


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


def some_rows(output: nn.Linear, entries: Sequence[int]) -> nn.Linear:
    """A layer that scores only these vocabulary ids."""
    index = torch.tensor(entries, device=output.weight.device)
    some = nn.Linear(output.in_features, len(entries), bias=output.bias is not None, device="meta")
    some.weight = nn.Parameter(output.weight.detach()[index], requires_grad=False)
    if output.bias is not None:
        some.bias = nn.Parameter(output.bias.detach()[index], requires_grad=False)
    return some


def answer_score(scores: Tensor) -> Tensor:
    """[B, 1]: yes minus no, of [B, 2]; or yes alone, of [B, 1]."""
    return scores[:, :1] - scores[:, 1:].sum(dim=1, keepdim=True)


class State:
    """The state of a model's modules and configurations when this is made."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        configs = {id(each): each for module in modules for each in _configs(vars(module).values())}
        self._kept = [(holder, _copied(vars(holder))) for holder in (*modules, *configs.values())]

    def restore(self) -> bool:
        """Put back what has changed since, and say whether anything had. Not what was written into a tensor."""
        return any([_restore(vars(holder), kept) for holder, kept in self._kept])

    def __call__(self, *_: Any) -> None:
        """Restore the state: a hook before each forward."""
        self.restore()


def _configs(values: Any) -> list[PretrainedConfig]:
    found = [value for value in values if isinstance(value, PretrainedConfig)]
    return [*found, *(inner for config in found for inner in _configs(vars(config).values()))]


def _copied(held: dict[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) for name, value in held.items() if _counts(name)}


def _counts(name: str) -> bool:
    return name not in _PASSED_OVER and not name.endswith(_LONG_ROPE)


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | list | set) else value


def _restore(held: dict[str, Any], kept: dict[str, Any]) -> bool:
    differing = [name for name in held.keys() | kept.keys() if held.get(name, _ABSENT) is not kept.get(name, _ABSENT)]
    counting = filter(_counts, differing)
    changed = [name for name in counting if not _is_same(held.get(name, _ABSENT), kept.get(name, _ABSENT))]
    for name in changed:
        if name not in kept:
            del held[name]
        elif isinstance(kept[name], dict) and isinstance(held.get(name), dict):
            held[name].clear()  # the same object, to which others may refer
            held[name].update(kept[name])
        else:
            held[name] = _copy(kept[name])
    return bool(changed)


def _is_same(value: Any, kept: Any) -> bool:
    if isinstance(value, dict) and isinstance(kept, dict):
        return value.keys() == kept.keys() and all(_is_same(value[key], kept[key]) for key in value)
    if isinstance(value, list | tuple) and type(value) is type(kept):
        return len(value) == len(kept) and all(map(_is_same, value, kept))
    return value is kept or (isinstance(value, _PLAIN) and type(value) is type(kept) and value == kept)

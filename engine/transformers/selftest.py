"""Chooses by a self-test how a freshly loaded model is run: packed if that gives the rows of one sequence at a time.

Most architectures can be packed. A few have their own attention, and some mix neighbouring tokens elsewhere
(convolutions, concatenated embeddings), which no flag in their configuration says. The heads are tested with the rows.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from engine.machine.failures import one_line
from engine.model.model_folder import ModelFolder
from engine.selftest.comparison import TOLERANCE, agreement, is_near, largest_difference
from engine.transformers import attention
from engine.transformers.forward import Forward, Makers, PackedForward, PaddedForward
from engine.transformers.heads.makers import makers_of
from engine.transformers.prepack import prepack
from engine.transformers.reference import Reference, Scores, run_alone
from engine.types import ModelError, OutputKind, Rows

_FLOAT32_TOLERANCE_ON_GPU = 1e-4  # each shape has its own kernel, which adds in its own order
_SCORES_FACTOR = 10  # times the tolerance: a small score can be the difference of large numbers


@dataclass(frozen=True, slots=True)
class Choice:
    """How a model is run, and why."""

    forward: Forward
    makers: Makers  # for each of the folder's outputs
    notes: tuple[str, ...]
    is_reentrant: bool  # whether several threads may run it at the same time
    is_padded: bool = False


def choose_forward(whole: PreTrainedModel, folder: ModelFolder, *, prepacks: bool = False) -> Choice:
    """Try packed, then padded, and compare both with one sequence at a time through the layers as they were loaded.

    whole: see `loading.load_model`. prepacks: rearrange weights for speed. Raises ModelError if neither is right;
    the model must not be used then.
    """
    reference = run_alone(whole, folder)
    made = makers_of(folder, whole, reference)
    model = whole.base_model
    assert isinstance(model, PreTrainedModel)
    notes = (*((prepack(model),) if prepacks else ()), *made.notes, *reference.notes)
    is_reentrant = _is_reentrant(model)
    packed, why_not = _try_packed(model, folder, reference, made.makers)
    if packed is not None:
        note = "packed: sequences are computed side by side without padding; the self-test agrees"
        return Choice(packed, made.makers, (note, *notes), is_reentrant)
    padded = PaddedForward(model)
    problem = _disagreement(padded, reference, made.makers)
    if problem:
        raise ModelError(f"the architecture {folder.architecture!r} can't be run in batches: {problem}")
    note = f"padded: sequences of like length are padded to the longest, for {why_not}"
    return Choice(padded, made.makers, (note, *notes), is_reentrant, is_padded=True)


def _try_packed(
    model: PreTrainedModel, folder: ModelFolder, reference: Reference, makers: Makers
) -> tuple[PackedForward | None, str]:
    """The forward; or None and the reason, after the model's own attention was restored."""
    own = model.config._attn_implementation
    if not model._can_set_attn_implementation():
        return None, f"{type(model).__name__} takes no attention function from outside"
    attention.register()
    model.set_attn_implementation(attention.PACKED)
    packed = PackedForward(model, padding_idx=folder.padding_idx)
    problem = _disagreement(packed, reference, makers)
    if not problem:
        return packed, ""
    model.set_attn_implementation(own)
    return None, f"packed {problem}"


def _is_reentrant(model: PreTrainedModel) -> bool:
    """Some rotary embeddings keep the length of the current sequences in the module itself."""
    kinds = " ".join(str(getattr(module, "rope_type", "")) for module in model.modules())
    return "dynamic" not in kinds and "longrope" not in kinds


def _disagreement(forward: Forward, reference: Reference, makers: Makers) -> str:
    """What is wrong with the forward's rows or the heads' scores; "" if nothing is."""
    try:
        rows = forward(reference.batch)
        if rows.shape != reference.token_rows.shape:
            return f"gives rows of shape {tuple(rows.shape)}, not {tuple(reference.token_rows.shape)}"
        scores = {kind: makers[kind](rows, reference.batch) for kind in reference.scores}
    except Exception as error:  # layers raise anything on input that they do not support
        return f"fails with {one_line(error)}"
    dtype = str(rows.dtype).removeprefix("torch.")
    found = agreement(_on_host(rows), _on_host(reference.token_rows), dtype=dtype)
    if not is_near(found, dtype=dtype):
        return f"differs from one sequence at a time: {found.in_words}"
    tolerance = _tolerance(rows)
    difference = max((_difference(scores[kind], kind, own) for kind, own in reference.scores.items()), default=0.0)
    return "" if difference <= _SCORES_FACTOR * tolerance else f"gives scores that differ by {difference:.1e}"


def _difference(rows: Rows, kind: OutputKind, expected: Scores) -> float:
    """The largest difference, relative to the largest score if that is above 1."""
    values = _on_host(expected.values)
    found = _dense(rows, values.shape[1]) if kind is OutputKind.SPARSE else rows.values
    return largest_difference(found, values, scale=max(1.0, expected.scale))


def _on_host(rows: torch.Tensor) -> NDArray[np.float32]:
    return rows.float().cpu().numpy()


def _dense(rows: Rows, num_entries: int) -> NDArray[np.float32]:
    """[B, V] of ragged [N, 2]."""
    assert rows.offsets is not None
    counts = np.diff(rows.offsets)
    dense = np.zeros((len(counts), num_entries), np.float32)
    dense[np.repeat(np.arange(len(counts)), counts), rows.values[:, 0].astype(np.int64)] = rows.values[:, 1]
    return dense


def _tolerance(rows: torch.Tensor) -> float:
    is_exact = rows.dtype is torch.float32
    return _FLOAT32_TOLERANCE_ON_GPU if is_exact and rows.is_cuda else TOLERANCE[str(rows.dtype).removeprefix("torch.")]

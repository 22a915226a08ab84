"""Chooses how a freshly loaded model is run, by trying it: packed where that gives what one sequence at a time gives.

Most architectures can be packed. A few bring an attention of their own, and some mix neighbouring tokens elsewhere
(convolutions, concatenated embeddings), which no flag of theirs tells.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.failures import not_finite, one_line
from engine.model_folder import ModelFolder
from engine.transformers import attention
from engine.transformers.forward import Forward, PackedForward, PaddedForward
from engine.transformers.prepack import prepack
from engine.types import Batch, ModelError, OutputKind

_SEQLENS = (5, 17, 1, 5, 9, 30)  # equal lengths are there on purpose, and a sum that `forward` rounds up
_NUM_SPECIAL = 4  # the first ids are often padding and markers
# largest difference over largest value: rounding alone; a leak between sequences is a thousand times that
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_FLOAT32_TOLERANCE_ON_GPU = 1e-4  # another kernel, with another order of additions, for each shape


@dataclass(frozen=True, slots=True)
class Choice:
    """How a model is run, and why."""

    forward: Forward
    notes: tuple[str, ...]
    is_reentrant: bool  # whether several threads may run it at the same time


def choose_forward(model: PreTrainedModel, folder: ModelFolder, *, prepacks: bool = False) -> Choice:
    """Try packed, then padded, both held against one sequence at a time with the layers as they were loaded.

    prepacks: lay out weights anew for speed. Raises ModelError where neither is right; the model may be spoiled then.
    """
    batch = _sample(folder)
    padded = PaddedForward(model)
    expected = _run_one_by_one(padded, batch)
    notes = (prepack(model),) if prepacks else ()
    is_reentrant = _is_reentrant(model)
    packed, why_not = _try_packed(model, folder, batch, expected)
    if packed is not None:
        note = "packed: sequences are computed side by side without padding; the self-test agrees"
        return Choice(packed, (note, *notes), is_reentrant)
    problem = _disagreement(padded, batch, expected)
    if problem:
        raise ModelError(f"the architecture {folder.architecture!r} can't be run in batches: {problem}")
    note = f"padded: sequences of like length are padded to the longest, for {why_not}"
    return Choice(padded, (note, *notes), is_reentrant)


def _try_packed(
    model: PreTrainedModel, folder: ModelFolder, batch: Batch, expected: Tensor
) -> tuple[PackedForward | None, str]:
    """The forward, or why it is not to be used; the model then has its own attention again."""
    own = model.config._attn_implementation
    if not model._can_set_attn_implementation():
        return None, f"{type(model).__name__} takes no attention function from outside"
    attention.register()
    model.set_attn_implementation(attention.PACKED)
    packed = PackedForward(model, padding_idx=folder.padding_idx)
    problem = _disagreement(packed, batch, expected)
    if not problem:
        return packed, ""
    model.set_attn_implementation(own)
    return None, f"packed {problem}"


def _is_reentrant(model: PreTrainedModel) -> bool:
    """Some rotary embeddings note in the module itself how long the sequences are that they work on."""
    kinds = " ".join(str(getattr(module, "rope_type", "")) for module in model.modules())
    return "dynamic" not in kinds and "longrope" not in kinds


def _disagreement(forward: Forward, batch: Batch, expected: Tensor) -> str:
    """What is wrong with these rows, "" if nothing is."""
    try:
        rows = forward(batch)
    except Exception as error:  # whatever a layer makes of input that it was not written for
        return f"fails with {one_line(error)}"
    if rows.shape != expected.shape:
        return f"gives rows of shape {tuple(rows.shape)}, not {tuple(expected.shape)}"
    difference = ((rows - expected).abs().max() / expected.abs().max()).item()
    return "" if difference <= _tolerance(rows) else f"differs by {difference:.1e} from one sequence at a time"


def _tolerance(rows: Tensor) -> float:
    is_exact = rows.dtype is torch.float32
    return _FLOAT32_TOLERANCE_ON_GPU if is_exact and rows.is_cuda else _TOLERANCE[rows.dtype]


def _run_one_by_one(padded: PaddedForward, batch: Batch) -> Tensor:
    try:
        rows = torch.cat([padded(single) for single in _singles(batch)])
    except Exception as error:
        raise ModelError(f"the model does not run on token ids alone: {one_line(error)}") from error
    if not rows.isfinite().all():
        raise not_finite("transformers", str(rows.dtype).removeprefix("torch."))
    return rows


def _singles(batch: Batch) -> list[Batch]:
    return [
        Batch(batch.model, batch.outputs, batch.token_ids[start:end], np.array([0, end - start], np.int32))
        for start, end in itertools.pairwise(batch.cu_seqlens.tolist())
    ]


def _sample(folder: ModelFolder) -> Batch:
    """Arbitrary ids, the same at each start."""
    seqlens = np.minimum(_SEQLENS, folder.max_seqlen)
    cu_seqlens = np.concatenate(([0], np.cumsum(seqlens))).astype(np.int32)
    first = min(_NUM_SPECIAL, folder.vocab_size - 1)
    token_ids = np.random.default_rng(seed=0).integers(first, folder.vocab_size, cu_seqlens[-1], np.int32)
    return Batch("", OutputKind.POOLED, token_ids, cu_seqlens)

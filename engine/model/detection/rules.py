"""Applies the rules in order: flags, modules.json, config.json, known generative rerankers, files beside the model.

The first that fits decides.
"""

import dataclasses
from collections.abc import Iterator

from engine.model.detection.detected import Detected, Files
from engine.model.detection.late_interaction import late_interaction
from engine.model.detection.scores import generative, scores
from engine.model.detection.sparse import masked_lm, side_heads, splade
from engine.model.modules import Chain
from engine.model.tasks import SequenceScores, Task, TokenVectors, TokenWeights, VocabularyWeights
from engine.types import ModelError

SPLADE = "splade"  # the value of --pooling, as in TEI
_SPARSE_HEADS = VocabularyWeights | TokenWeights


def detect(files: Files, *, wanted: Task | None, is_splade: bool) -> Detected:
    """Find the model's task. wanted: the value of --task, None = auto. is_splade: --pooling splade.

    Raises ModelError with one line if the model does not fit the task, or its head is broken.
    """
    found = _detect(files, wanted=wanted, is_splade=is_splade)
    if files.template and found.task is not Task.RERANK:
        raise ModelError(f"--template is for rerankers, and this model is for {found.task} ({found.source})")
    return found


def _detect(files: Files, *, wanted: Task | None, is_splade: bool) -> Detected:
    if is_splade:
        if wanted not in (None, Task.SPARSE):
            raise ModelError(f"--pooling splade is for --task sparse, not {wanted}")
        return masked_lm(files, "--pooling splade")
    if wanted is None:
        return next(_found(files, wanted))
    if wanted is Task.EMBED:
        found = next((each for each in _embeddings(files)), None) or Detected(task=Task.EMBED, source="")
        return dataclasses.replace(found, source="--task embed")
    seen = []
    for found in _found(files, wanted):
        if _fits(found, wanted):
            return dataclasses.replace(found, task=wanted, source=f"--task {wanted}; {found.source}")
        seen.append(found)
    if wanted is Task.SPARSE:
        return masked_lm(files, "--task sparse")
    raise ModelError(f"--task {wanted}: the model is not for this; it is for {_in_words(seen)}")


def _found(files: Files, wanted: Task | None) -> Iterator[Detected]:
    """The tasks that the model fits, the likeliest first."""
    if files.chain is Chain.SPARSE:
        yield splade(files)
        return
    yield from late_interaction(files)
    if files.chain in (Chain.EMBED, Chain.STATIC):
        yield from _embeddings(files)
    yield from scores(files)
    yield from generative(files, wanted=wanted)
    yield from _embeddings(files)


def _embeddings(files: Files) -> Iterator[Detected]:
    yield from side_heads(files)
    others = [name for name in (files.config.get("architectures") or ())[1:] if name != files.architecture]
    notes = (f"embeddings alone: {', '.join(others)} in config.json is for other rows",) if others else ()
    yield Detected(task=Task.EMBED, source="modules.json" if files.chain else "no head", notes=notes)


def _fits(found: Detected, wanted: Task) -> bool:
    if found.task is wanted:
        return True
    match wanted:
        case Task.CLASSIFY:
            return any(isinstance(head, SequenceScores) for head in found.heads)
        case Task.SPARSE:
            return any(isinstance(head, _SPARSE_HEADS) for head in found.heads)
        case Task.LATE_INTERACTION:
            return any(isinstance(head, TokenVectors) for head in found.heads)
    return False


def _in_words(seen: list[Detected]) -> str:
    """The tasks and their sources, in words."""
    return "; ".join(dict.fromkeys(f"{found.task} ({found.source})" for found in seen))

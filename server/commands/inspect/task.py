"""What `embedline inspect` says of a model's task: heads, labels, and what is done with its scores."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from engine.model.detection.generative import template_name
from engine.model.model_folder import ModelFolder
from engine.model.steps import Dense, LayerNorm
from engine.model.tasks import (
    AnswerScore,
    Head,
    LateInteraction,
    SequenceScores,
    Task,
    TokenScores,
    TokenVectors,
    TokenWeights,
    VocabularyWeights,
)

_MAX_LABELS = 5  # that are shown


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact, and who says so."""

    name: str
    value: Any  # as JSON has it
    source: str = ""


def task_findings(folder: ModelFolder) -> list[Finding]:
    """In the order in which they are shown; of an embedding model, its task and outputs."""
    found = [
        Finding("task", str(folder.task), folder.task_source),
        Finding("outputs", [kind.name.lower() for kind in folder.outputs if kind.name]),
    ]
    if folder.heads:
        found.append(Finding("heads", [head_in_words(head) for head in folder.heads]))
    if folder.labels:
        found.append(Finding("labels", _first(folder.labels), f"config.json: {len(folder.labels)}"))
    if folder.task in (Task.RERANK, Task.CLASSIFY, Task.TOKEN_CLASSIFY):
        found.append(Finding("activation", str(folder.activation)))
    if folder.template:
        found.append(Finding("template", template_name(folder.template), "known here; its words are not read"))
        found.append(Finding("instruction", folder.template.instruction or None))
    if folder.query_table:
        found.append(Finding("queries", f"a weight for each token, from {folder.query_table.folder}", "a Router"))
    if folder.late:
        found.append(Finding("late_interaction", late_in_words(folder.late)))
    return found


def head_in_words(head: Head) -> str:
    """One line."""
    match head:
        case SequenceScores(labels=labels):
            return f"a score for each of {len(labels)} labels" if len(labels) > 1 else "one score"
        case TokenScores(labels=labels):
            return f"a score for each of {len(labels)} labels, of each token"
        case AnswerScore(yes_id=yes_id, no_id=no_id):
            return f"next token {yes_id}" + (f" against {no_id}" if no_id is not None else ", raw")
        case VocabularyWeights(pooling=pooling, activation=activation):
            return f"weights of vocabulary entries: {activation}, {pooling} over the tokens"
        case TokenWeights(unused_ids=ids):
            return f"weights of tokens, without {len(ids)} special ones"
        case TokenVectors(steps=steps, dimensions=dimensions):
            names = [step.folder for step in steps if isinstance(step, Dense | LayerNorm)]
            return f"a row of {dimensions} for each token" + (f" ({', '.join(names)})" if names else "")


def late_in_words(late: LateInteraction) -> dict[str, Any]:
    """What differs from doing nothing."""
    usual = LateInteraction()
    told = {
        field.name: value
        for field in dataclasses.fields(late)
        if (value := getattr(late, field.name)) != getattr(usual, field.name)
    }
    if late.skipped_ids:
        told["skipped_ids"] = f"{len(late.skipped_ids)} tokens"
    return told


def _first(labels: tuple[str, ...]) -> list[str]:
    return [*labels[:_MAX_LABELS], *(["…"] if len(labels) > _MAX_LABELS else [])]

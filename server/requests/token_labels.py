"""Labels of tokens joined to labels of words and longer spans, as transformers' pipeline does.

https://github.com/huggingface/transformers, pipelines/token_classification.py. Pure functions of tokens, their scores
and the labels' names; a span that is outside of every entity (label O) is left out, as there.
"""

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenizer_pool.details import Token

OUTSIDE = "O"


class Aggregation(enum.StrEnum):
    """How tokens become spans."""

    NONE = "none"  # each token is a span
    SIMPLE = "simple"  # neighbours with the same label are one, also within a word
    FIRST = "first"  # a word has the label of its first token
    AVERAGE = "average"  # a word has the label of its tokens' mean scores
    MAX = "max"  # a word has the label of its token with the highest score


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the text, in characters, with its label and the label's score."""

    label: str
    score: float
    start: int
    stop: int


def spans(
    tokens: Sequence[Token], scores: NDArray[np.float32], labels: Sequence[str], aggregation: Aggregation
) -> Iterator[Span]:
    """Yields the entities of one text. Not for Aggregation.NONE.

    tokens  S of them; special ones belong to no span
    scores  float32 [S, labels]
    """
    words = _words(tokens) if aggregation is not Aggregation.SIMPLE else _tokens(tokens)
    for span in _joined(_labelled(tokens, word, scores, labels, aggregation) for word in words):
        if span.label != OUTSIDE:
            yield span


def _tokens(tokens: Sequence[Token]) -> Iterator[list[int]]:
    """Indices of the tokens that are not special, each alone."""
    return ([index] for index, token in enumerate(tokens) if not token.is_special)


def _words(tokens: Sequence[Token]) -> Iterator[list[int]]:
    """The same, with the tokens of a word together."""
    word: list[int] = []
    for (index,) in _tokens(tokens):
        if word and not tokens[index].is_subword:
            yield word
            word = []
        word.append(index)
    if word:
        yield word


def _labelled(
    tokens: Sequence[Token],
    word: list[int],
    scores: NDArray[np.float32],
    labels: Sequence[str],
    aggregation: Aggregation,
) -> Span:
    """One word, or one token."""
    match aggregation:
        case Aggregation.AVERAGE if len(word) > 1:
            chosen = scores[word].mean(axis=0)
        case Aggregation.MAX if len(word) > 1:
            chosen = scores[word[int(scores[word].max(axis=1).argmax())]]
        case _:
            chosen = scores[word[0]]
    best = int(chosen.argmax())
    return Span(labels[best], float(chosen[best]), tokens[word[0]].start or 0, tokens[word[-1]].stop or 0)


def _joined(parts: Iterable[Span]) -> Iterator[Span]:
    """Joins neighbours of one kind until the next one begins with B-; their score is the mean."""
    group: list[Span] = []
    for part in parts:
        begins, kind = _tag(part.label)
        if group and (begins or kind != _tag(group[-1].label)[1]):
            yield _span(group)
            group = []
        group.append(part)
    if group:
        yield _span(group)


def _span(group: list[Span]) -> Span:
    # the name of the first, without any prefix: B-, I- or another
    name = group[0].label.split("-", 1)[-1]
    return Span(name, sum(part.score for part in group) / len(group), group[0].start, group[-1].stop)


def _tag(label: str) -> tuple[bool, str]:
    """Whether it begins an entity, and of which kind."""
    if label.startswith(("B-", "I-")):
        return label.startswith("B-"), label[2:]
    return False, label  # without a prefix it continues the entity before it

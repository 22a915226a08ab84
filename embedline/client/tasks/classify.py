"""Labels of texts or pairs, with scores: TEI's route, else vLLM's and Infinity's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embedline.client.tasks.task import (
    Batch,
    Part,
    Way,
    as_json,
    check_count,
    most_bytes,
    score_in,
    text_in,
    without_none,
    wrong,
)
from embedline.client.transport.answer import Answer

_TEI, _OTHERS = "inputs", "input"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsPart(Part):
    """Scores by label of each item of one batch."""

    scores: list[dict[str, float]]


class ClassifyTask:
    """Texts or pairs of texts to scores by label."""

    is_whole = False
    name = "classify"
    method = "POST"
    ways: tuple[Way, ...] = (Way("/predict", _TEI), Way("/classify", _OTHERS))

    def __init__(self, *, model: str | None, raw_scores: bool | None, truncation: dict[str, Any]) -> None:
        self._model = model
        self._raw_scores = raw_scores
        self._truncation = truncation

    def prepare(self, items: list[Any], start: int) -> list[Any]:
        return [_texts(item, index) for index, item in enumerate(items, start)]

    def length(self, item: Any) -> int:
        return sum(map(len, item))

    def body(self, items: Sequence[Any], way: Way) -> bytes:
        if way.form == _TEI:
            fields = without_none(model=self._model, raw_scores=self._raw_scores, **self._truncation)
            return as_json({"inputs": items, **fields})
        if any(len(item) > 1 for item in items):
            raise wrong("it has no /predict, and pairs are not sent in another way")
        fields = without_none(model=self._model, **self._truncation)
        # Infinity's name, which chooses Infinity's form of the answer at a server that has both: all labels by name.
        return as_json({"input": [item[0] for item in items], "raw_scores": bool(self._raw_scores), **fields})

    def read(self, batch: Batch, way: Way, answer: Answer) -> LabelsPart:
        content, results = answer.results("data", most=most_bytes(batch))
        check_count(len(results), batch, "results")
        return LabelsPart(scores=[_scores(item) for item in results], model=text_in(content, "model"))


def _texts(item: Any, index: int) -> list[str]:
    """One text, or two of a pair."""
    texts = [item] if isinstance(item, str) else list(item) if isinstance(item, list | tuple) else []
    if not 1 <= len(texts) <= 2 or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"inputs[{index}] must be a text or a pair of texts, not {type(item).__name__}")
    return texts


def _scores(item: Any) -> dict[str, float]:
    """One item in the form of TEI and Infinity: a list of objects with label and score."""
    if not isinstance(item, list) or not item:
        raise wrong("a result that is no list of labels")
    found = {}
    for one in item:
        label = text_in(one, "label")
        if label is None:
            raise wrong("a score without a label")
        found[label] = score_in(one, "score")
    return found

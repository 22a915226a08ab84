"""Scores of texts for a query: TEI's route, else the one that Cohere, Jina, vLLM and Infinity have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedline.client.tasks.task import (
    Batch,
    Part,
    Way,
    as_json,
    check_count,
    index_in,
    most_bytes,
    number_in,
    score_in,
    text_in,
    without_none,
)
from embedline.client.transport.answer import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoresPart(Part):
    """Scores of one batch."""

    scores: NDArray[np.float32]  # float32 [texts]


class RerankTask:
    """Texts to scores."""

    is_whole = False
    name = "rerank"
    method = "POST"
    ways: tuple[Way, ...] = (Way("/rerank", "texts"), Way("/v1/rerank", "documents"), Way("/rerank", "documents"))

    def __init__(self, query: str, *, model: str | None, options: dict[str, Any]) -> None:
        self._query = query
        self._model = model
        self._options = options  # TEI's: raw_scores, truncate, truncation_direction

    def prepare(self, items: list[Any], start: int) -> list[Any]:
        for index, item in enumerate(items, start):
            if not isinstance(item, str):
                raise TypeError(f"texts[{index}] must be a text, not {type(item).__name__}")
        return items

    def length(self, item: Any) -> int:
        return len(item) + len(self._query)

    def body(self, items: Sequence[Any], way: Way) -> bytes:
        fields = {"query": self._query, way.form: items, **without_none(model=self._model, **self._options)}
        if way.form == "documents":
            fields["top_n"] = len(items)
        return as_json(fields)

    def read(self, batch: Batch, way: Way, answer: Answer) -> ScoresPart:
        content, results = answer.results("results", "data", most=most_bytes(batch))
        check_count(len(results), batch, "scores")
        scores = np.empty(len(batch.items), np.float32)
        seen: set[int] = set()
        for item in results:
            index = index_in(item, batch, seen)
            scores[index] = score_in(item, "score", "relevance_score")
        usage = content.get("usage")
        return ScoresPart(
            scores=scores,
            model=text_in(content, "model"),
            prompt_tokens=number_in(usage, "prompt_tokens"),
            truncated=number_in(usage, "truncated_inputs"),
        )

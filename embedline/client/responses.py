"""What the client's calls return."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that the server counted."""

    prompt_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Response:
    """What all answers have."""

    done: NDArray[np.bool_]  # bool [n]: which inputs have their result; all, but after an error or with on_error
    model: str | None  # as the server names it; None = it does not
    usage: Usage | None  # None = some answer does not say
    truncated_inputs: int | None  # how many were too long and were cut; None = some answer does not say
    total_time: float  # seconds
    individual_request_times: tuple[float, ...]  # seconds, of each request that was answered


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmbedResponse(Response):
    """Rows of `embed`, in the order of the inputs. `numpy.asarray(response)` gives them too."""

    embeddings: NDArray[np.float32]  # float32 [n, dimensions], NaN where not done; [n, 0] if no answer came

    def numpy(self) -> NDArray[np.float32]:
        """float32 [n, dimensions], not copied."""
        return self.embeddings

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.embeddings, dtype=dtype, copy=bool(copy)) if copy else np.asarray(self.embeddings, dtype)

    def __len__(self) -> int:
        return len(self.embeddings)


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddedSlice:
    """What `iter_embed` yields: the rows of inputs[start:stop]."""

    start: int
    stop: int
    embeddings: NDArray[np.float32]  # float32 [stop - start, dimensions]
    prompt_tokens: int | None = None  # None = the server does not say
    truncated_inputs: int | None = None  # how many were too long and were cut; None = the server does not say

    def __iter__(self) -> Iterator[Any]:
        """For `for part, rows in client.iter_embed(texts)`: the slice, then the rows."""
        return iter((slice(self.start, self.stop), self.embeddings))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RerankResponse(Response):
    """Scores of `rerank`, in the order of the texts."""

    scores: NDArray[np.float32]  # float32 [n]; NaN where there is none
    texts: Sequence[str]

    def numpy(self) -> NDArray[np.float32]:
        """float32 [n], not copied."""
        return self.scores

    def order(self) -> NDArray[np.intp]:
        """The numbers of the texts, the best first; equal ones as they were given, those without a score last."""
        return np.argsort(-self.scores, kind="stable")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassifyResponse(Response):
    """Scores of `classify`, in the order of the inputs."""

    labels: tuple[str, ...]  # in alphabetical order
    scores: NDArray[np.float32]  # float32 [n, labels]; NaN where there is none

    def numpy(self) -> NDArray[np.float32]:
        """float32 [n, labels], not copied."""
        return self.scores

    def best(self) -> list[str | None]:
        """The label with the highest score of each input; None for one that has none."""
        if not self.labels:
            return [None] * len(self.scores)
        scores = np.where(np.isnan(self.scores), -np.inf, self.scores)
        return [None if row.max() == -np.inf else self.labels[row.argmax()] for row in scores]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchPostResponse(Response):
    """Answers of `batch_post`, in the order of the payloads."""

    data: list[Any]  # values out of JSON, or bytes where the answer is none; None where there is no answer

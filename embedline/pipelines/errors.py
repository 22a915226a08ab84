"""The errors of a pipeline: in how it is put together, and when it runs.

EmbedlineError
├── PipelineError        it is put together wrong; found before anything runs
├── StepFailed           a step raised: `step` names it, `__cause__` is what it raised
│   └── StepTimeout      ... or did not end in its time (a TimeoutError too)
├── PipelineTimeout      all steps together did not end in time (a TimeoutError too)
└── InvalidInput         raised by a step: what it was asked for is wrong, and the message may be shown to who asked
"""

from collections.abc import Sequence
from typing import Any

from embedline.client.errors import EmbedlineError


class PipelineError(EmbedlineError):
    """A step or a pipeline is put together wrong."""


class StepFailed(EmbedlineError):
    """A step raised; the other steps of the run were cancelled."""

    def __init__(self, step: str, problem: str) -> None:
        super().__init__(f"step {step} {problem}")
        self.step = step
        self._problem = problem

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.step, self._problem)  # so that Ray can send it


def failed(step: str, error: BaseException) -> StepFailed:
    """The error of a run whose step raised."""
    return StepFailed(step, f"failed: {type(error).__name__}: {error}")


class StepTimeout(StepFailed, TimeoutError):
    """A step did not end in its time."""


class PipelineTimeout(EmbedlineError, TimeoutError):
    """A pipeline did not end in its time. `steps` had begun and not ended."""

    def __init__(self, pipeline: str, seconds: float, steps: Sequence[str]) -> None:
        super().__init__(f"pipeline {pipeline} did not end within {seconds:g} s; under way: {', '.join(steps)}")
        self.steps = tuple(steps)
        self._given = pipeline, seconds, self.steps

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given


class InvalidInput(EmbedlineError, ValueError):
    """Raise it in a step whose input makes no sense. Who asked gets the message, so it should repeat no text."""

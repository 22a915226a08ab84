"""Pipelines: typed steps of plain Python, and functions that put them together. Needs numpy and nothing else.

    @step                                 an async function; its types are checked where it is put to use
    @pipeline                             a function that only calls steps: it is read once, as a graph
    await search.run(client, "a query")   runs the graph in this process

`embedline serve --pipelines FILE.py` runs the pipelines of a file beside a server. docs/pipelines.md has examples.
"""

from embedline.pipelines.errors import InvalidInput, PipelineError, PipelineTimeout, StepFailed, StepTimeout
from embedline.pipelines.graph import Step, step
from embedline.pipelines.pipeline import Pipeline, pipeline

__all__ = [
    "InvalidInput",
    "Pipeline",
    "PipelineError",
    "PipelineTimeout",
    "Step",
    "StepFailed",
    "StepTimeout",
    "pipeline",
    "step",
]

"""Runs a graph: each step as soon as it has what it needs. If one fails, the others are cancelled."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from embedline.pipelines.errors import InvalidInput, PipelineTimeout, StepFailed, StepTimeout, failed
from embedline.pipelines.graph import Graph, Node

RunStep = Callable[[Node, dict[str, Any]], Awaitable[Any]]  # the step of a node, with all its arguments


async def run_graph(graph: Graph, inputs: dict[str, Any], run_step: RunStep) -> Any:
    """The output. `inputs` are all, by name. Raises StepFailed, PipelineTimeout, InvalidInput."""
    begun: dict[Node, asyncio.Task[Any]] = {}
    values: dict[Node, Any] = {node: inputs[name] for name, node in graph.inputs.items()}

    async def run(node: Node) -> None:
        given = node.constants.copy()
        for name, needed in node.needs.items():
            if needed not in values:
                await begun[needed]
            given[name] = values[needed]
        values[node] = await _run_one(node, given, run_step)

    try:
        async with asyncio.timeout(graph.timeout), asyncio.TaskGroup() as group:
            for node in graph.nodes:
                begun[node] = group.create_task(run(node))
    except TimeoutError:
        under_way = [node.name for node in graph.nodes if node not in values and _has_all(node, values)]
        raise PipelineTimeout(graph.name, graph.timeout, under_way) from None
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
    return values[graph.output]


async def _run_one(node: Node, given: dict[str, Any], run_step: RunStep) -> Any:
    assert node.work is not None
    try:
        if node.work.timeout is None:
            return await run_step(node, given)
        async with asyncio.timeout(node.work.timeout) as limit:
            return await run_step(node, given)
    except (StepFailed, InvalidInput, KeyboardInterrupt):  # from another process, or on purpose
        raise
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise StepFailed(node.name, "was cancelled by what it waited for") from None
    except BaseException as error:  # also SystemExit, and the panics of libraries in Rust
        if isinstance(error, TimeoutError) and node.work.timeout is not None and limit.expired():
            raise StepTimeout(node.name, f"did not end within {node.work.timeout:g} s") from None
        raise failed(node.name, error) from error


def _has_all(node: Node, values: dict[Node, Any]) -> bool:
    return all(needed in values for needed in node.needs.values())

"""Pipelines: functions that only call steps, read once as a graph.

A graph is run each step as soon as it has what it needs. If one fails, the others are cancelled.
"""

import asyncio
import inspect
import math
import typing
from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from typing import Any, Generic, ParamSpec, TypeVar, overload

from embedline.client.async_client import AsyncClient
from embedline.pipelines.errors import InvalidInput, PipelineError, PipelineTimeout, StepFailed, StepTimeout, failed
from embedline.pipelines.graph import (
    Graph,
    GraphReader,
    Node,
    Value,
    bound,
    check,
    current,
    node_of,
    read,
    signature_of,
)

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")

RunStep = Callable[[Node, dict[str, Any]], Awaitable[Any]]  # the step of a node, with all its arguments


class Pipeline(Generic[P, R]):
    """A function that only calls steps and other pipelines. Another pipeline that calls it gets its steps.

    function     itself
    name         of the function
    description  the first line of its docstring, "" without one
    parameters   its inputs and their types
    defaults     of the inputs that have one
    returns      its type
    """

    def __init__(self, function: Callable[P, R], *, timeout: float) -> None:
        """Raises PipelineError."""
        if inspect.iscoroutinefunction(function):
            raise PipelineError(f"{function.__name__}: a pipeline is a plain function, only its steps are async")
        if not 0 < timeout < math.inf:
            raise PipelineError(f"{function.__name__}: timeout must be a number of seconds above 0")
        self.name = function.__name__
        self.description = (inspect.getdoc(function) or "").partition("\n")[0]
        self.parameters, self.returns = signature_of(function)
        self.function = function
        self._signature = inspect.signature(function)
        self._timeout = timeout
        parameters = self._signature.parameters.values()
        self.defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
        for name, default in self.defaults.items():
            check(default, self.parameters[name], where=f"pipeline {self.name}: the default of {name}")

    @cached_property
    def graph(self) -> Graph:
        """Its steps. Raises PipelineError for types that don't fit, cycles, and steps that nothing needs."""
        trace, inputs = GraphReader(), {name: Node(name, kind) for name, kind in self.parameters.items()}
        result = read(trace, partial(self._read, trace, {name: Value(node) for name, node in inputs.items()}))
        output = node_of(result)
        if output.work is None:
            raise PipelineError(f"pipeline {self.name} returns its input {output.name}, and calls no step for it")
        _refuse_unneeded(self.name, trace.nodes, output)
        return Graph(self.name, inputs, tuple(trace.nodes), output, self._timeout)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it in another pipeline's function. Raises PipelineError."""
        trace = current()
        if trace is None:
            raise PipelineError(f"pipeline {self.name} is run with: await {self.name}.run(client, …)")
        given = {**self.defaults, **bound(self._signature, args, kwargs, name=self.name)}
        for name, value in given.items():
            check(value, self.parameters[name], where=f"pipeline {self.name}: {name}")
        return typing.cast(R, self._read(trace, given))

    async def run(self, client: AsyncClient | None, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return its output. `client` is for steps that take one. Raises StepFailed, PipelineTimeout, InvalidInput."""

        async def run_step(node: Node, given: dict[str, Any]) -> Any:
            assert node.work is not None
            return await node.work.here(client, given)

        return typing.cast(R, await self.run_with(run_step, self.inputs(*args, **kwargs)))

    def inputs(self, /, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """All inputs by name. Raises TypeError."""
        return {**self.defaults, **self._signature.bind(*args, **kwargs).arguments}

    async def run_with(self, run_step: RunStep, inputs: dict[str, Any]) -> Any:
        """Run it where somebody else runs the steps, in other processes for instance. `inputs` are all, by name. Raises
        StepFailed, PipelineTimeout, InvalidInput."""
        graph = self.graph
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
            waited_for = [node for node in graph.nodes if node not in values]
            under_way = [node.name for node in waited_for if all(needed in values for needed in node.needs.values())]
            raise PipelineTimeout(graph.name, graph.timeout, under_way) from None
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors.exceptions[0].__cause__
        return values[graph.output]

    def _read(self, trace: GraphReader, inputs: dict[str, Any]) -> Value:
        trace.enter(self.name)
        result: Any = self.function(**inputs)  # type: ignore[call-arg]  # by name, as mypy can't know
        trace.pipelines.pop()
        if not isinstance(result, Value):
            raise PipelineError(f"pipeline {self.name} must return what a step gives, not {type(result).__name__}")
        check(result, self.returns, where=f"what pipeline {self.name} returns")
        return result


def _refuse_unneeded(pipeline: str, nodes: list[Node], output: Node) -> None:
    needed, waiting = {output}, [output]
    while waiting:
        new = set(waiting.pop().needs.values()) - needed
        needed |= new
        waiting += new
    for node in reversed(nodes):
        if node not in needed:
            raise PipelineError(f"pipeline {pipeline}: nothing needs what step {node.name} gives")


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


@overload
def pipeline(function: Callable[P, R], /) -> Pipeline[P, R]: ...


@overload
def pipeline(*, timeout: float) -> Callable[[Callable[P, R]], Pipeline[P, R]]: ...


def pipeline(function: Any = None, /, *, timeout: float = 30.0) -> Any:
    """Makes a Pipeline of a function: `@pipeline`, or `@pipeline(timeout=5.0)` with the seconds that it may take."""
    return partial(Pipeline, timeout=timeout) if function is None else Pipeline(function, timeout=timeout)

"""A pipeline on Ray Serve: each step is a deployment of its own, with its own replicas and resources.

    make_client = partial(AsyncClient, "http://embedline:8080")
    handle = serve.run(application(search, client=make_client, options={"cut": {"num_replicas": 2}}))
    await handle.remote("a query")

Needs Ray (`pip install 'embedline[ray]'`), and on every node this package and the module of the pipeline.
"""

import asyncio
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from embedline.client.async_client import AsyncClient
from embedline.pipelines.errors import InvalidInput, PipelineError, StepFailed, failed
from embedline.pipelines.graph import Graph, Node, Step
from embedline.pipelines.pipeline import Pipeline

_ONGOING = {"max_ongoing_requests": 100}  # of a replica: steps wait more than they compute. Ray's own default is 5

MakeClient = Callable[[], AsyncClient]


def application(
    pipeline: Pipeline[..., Any],
    *,
    client: MakeClient | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Any:
    """The application that `ray.serve.run` takes. Its handle's `remote` has the pipeline's parameters.

    `client` makes the AsyncClient of the steps that take one, once in each replica. `options` are those of
    `serve.deployment`, such as `num_replicas` or `autoscaling_config`, by the names of steps, or that of the pipeline
    for what passes values between them. Raises PipelineError.
    """
    options = dict(options or {})
    deployments = _deployments(pipeline.graph)
    known = [*deployments.values(), pipeline.name]
    if unknown := options.keys() - set(known):
        raise PipelineError(f"no step of {pipeline.name} is called {min(unknown)}; there are {', '.join(known)}")
    if client is None and (takers := [one.name for one in deployments if one.takes_client]):
        raise PipelineError(f"step {takers[0]} takes an AsyncClient: give application(client=…), which makes one")
    from ray import serve

    own = {name: {**_ONGOING, **options.get(name, {})} for name in known}
    steps = {
        name: serve.deployment(_StepReplica, name=name, **own[name]).bind(_import_path(one), client)
        for one, name in deployments.items()
    }
    name = f"pipeline {pipeline.name}"
    return serve.deployment(_PipelineReplica, name=name, **own[pipeline.name]).bind(_import_path(pipeline), steps)


class _StepReplica:
    def __init__(self, path: Any, client: MakeClient | None) -> None:
        self._step: Step[..., Any] = _imported(path)
        self._client = client() if client is not None and self._step.takes_client else None

    async def run(self, name: str, given: dict[str, Any]) -> Any:
        """`name` is that of the node. Raises errors that can be sent: StepFailed and InvalidInput."""
        try:
            return await self._step.here(self._client, given)
        except (StepFailed, InvalidInput):
            raise
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise failed(name, error) from None


class _PipelineReplica:
    """Passes values from step to step."""

    def __init__(self, path: Any, steps: dict[str, Any]) -> None:
        self._pipeline: Pipeline[..., Any] = _imported(path)
        self._handles = {work: steps[name] for work, name in _deployments(self._pipeline.graph).items()}

    async def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return await self._pipeline.run_with(self._run_step, self._pipeline.inputs(*args, **kwargs))

    async def _run_step(self, node: Node, given: dict[str, Any]) -> Any:
        from ray.exceptions import RayTaskError

        response = self._handles[node.work].run.remote(node.name, given)
        try:
            return await response
        except asyncio.CancelledError:
            response.cancel()
            raise
        except RayTaskError as error:
            raise error.cause from None


def _deployments(graph: Graph) -> dict[Any, str]:
    """The name of each step's deployment. Raises PipelineError for two steps with one name."""
    found = {node.work: node.work.name for node in graph.nodes if node.work is not None}
    for name in found.values():
        if [*found.values(), graph.name].count(name) > 1:
            raise PipelineError(
                f"pipeline {graph.name}: on Ray two of its steps, or it and a step, can't be called {name}"
            )
    return found


def _import_path(one: Any) -> Any:
    """The module and the name of a step or a pipeline; itself, which Ray copies, where it can't be imported."""
    module = one.function.__module__
    is_there = module != "__main__" and getattr(sys.modules.get(module), one.name, None) is one
    return (module, one.name) if is_there else one


def _imported(path: Any) -> Any:
    return getattr(importlib.import_module(path[0]), path[1]) if isinstance(path, tuple) else path

"""Steps: async functions whose types are known."""

import inspect
import math
import typing
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from embedline.client.async_client import AsyncClient
from embedline.pipelines.errors import PipelineError
from embedline.pipelines.graph import current

P = ParamSpec("P")
R = TypeVar("R")


class Step(Generic[P, R]):
    """Called in a pipeline's function, a step becomes a part of its graph. `function` is the step alone, for tests.

    name          of the function
    parameters    what it takes, with its type; without the client
    returns       its type
    takes_client  whether its first parameter is an AsyncClient, which the run gives it
    timeout       seconds; None = as long as the pipeline may
    """

    def __init__(self, function: Callable[..., Coroutine[Any, Any, R]], *, timeout: float | None) -> None:
        """Raises PipelineError."""
        if not inspect.iscoroutinefunction(function):
            raise PipelineError(f"{function.__name__}: a step is an async function; it can use asyncio.to_thread")
        if timeout is not None and not 0 < timeout < math.inf:
            raise PipelineError(f"{function.__name__}: timeout must be a number of seconds above 0")
        self.function = function
        self.name = function.__name__
        self.timeout = timeout
        self.parameters, self.returns = signature_of(function)
        first = next(iter(self.parameters.items()), ("", None))
        self.takes_client = first[1] is AsyncClient
        if self.takes_client:
            del self.parameters[first[0]]
        if AsyncClient in self.parameters.values():
            raise PipelineError(f"{function.__name__}: the AsyncClient is the first parameter of a step that takes one")
        self._signature = inspect.signature(function)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it in a pipeline's function. Raises PipelineError where the arguments are not what the step takes."""
        trace = current()
        if trace is None:
            raise PipelineError(
                f"step {self.name} is called in a pipeline's function only; await {self.name}.function(…)"
            )
        given = bound(self._signature, (*([None] if self.takes_client else []), *args), kwargs, name=self.name)
        return typing.cast(R, trace.add(self, {name: given[name] for name in self.parameters if name in given}))

    async def here(self, client: AsyncClient | None, arguments: Mapping[str, Any]) -> R:
        """Run it in this process."""
        if self.takes_client:
            if client is None:
                raise PipelineError(f"step {self.name} takes an AsyncClient, and the run was given none")
            return await self.function(client, **arguments)
        return await self.function(**arguments)


def signature_of(function: Callable[..., Any]) -> tuple[dict[str, Any], Any]:
    """The types of its parameters, and of what it returns. Raises PipelineError where one is missing."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise PipelineError(f"{function.__name__}: a type is not there at run time: {error}") from None
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise PipelineError(f"{function.__name__}: parameter {name} has no name of its own for who calls it")
        if name not in hints:
            raise PipelineError(f"{function.__name__}: parameter {name} has no type")
    if "return" not in hints:
        raise PipelineError(f"{function.__name__}: it does not say the type that it returns")
    return {name: kind for name, kind in hints.items() if name != "return"}, hints["return"]


def bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any], *, name: str) -> dict[str, Any]:
    """The arguments by name. Raises PipelineError."""
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise PipelineError(f"{name}: {error}") from None


class _Decorator(Protocol):
    """The decorator that `step(timeout=…)` gives."""

    @overload
    def __call__(self, function: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]], /) -> Step[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...


@overload
def step(function: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]], /) -> Step[P, R]: ...


@overload
def step(function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...


@overload
def step(*, timeout: float) -> _Decorator: ...


def step(function: Any = None, /, *, timeout: float | None = None) -> Any:
    """Makes a Step of an async function: `@step`, or `@step(timeout=2.0)` with the seconds that it may take."""
    return partial(Step, timeout=timeout) if function is None else Step(function, timeout=timeout)

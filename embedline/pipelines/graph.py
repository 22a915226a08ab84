"""Steps, and a pipeline as a graph of them: which step gets what from which other one.

A step is an async function whose types are known. Types are checked as a pipeline is put together: whether a value of
one type may be given where another is asked for, as far as annotations tell.
"""

import inspect
import math
import types
import typing
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, TypeVar, overload

from embedline.client.async_client import AsyncClient
from embedline.pipelines.errors import PipelineError

P = ParamSpec("P")
R = TypeVar("R")
_CONSTANTS = (str, int, float, bool, type(None))
_MAX_NODES = 1000
_MAX_DEPTH = 100  # of pipelines in pipelines

_NUMBERS = {int: (float, complex), float: (complex,), bool: (int, float, complex)}


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One use of a step, or an input of the pipeline."""

    name: str  # the step's, with a number if it is used several times
    kind: Any  # the type of its value
    work: "Step[..., Any] | None" = None  # None = an input
    needs: dict[str, "Node"] = field(default_factory=dict)  # what gives its arguments
    constants: dict[str, Any] = field(default_factory=dict)  # its other arguments


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """`nodes` are in an order in which each comes after those that it needs, without the inputs."""

    name: str  # of the pipeline
    inputs: dict[str, Node]
    nodes: tuple[Node, ...]
    output: Node
    timeout: float  # seconds


class Value:
    """The value of a call of a step while a pipeline is read. It can be passed on to other steps, and nothing else."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def __getattr__(self, name: str) -> NoReturn:
        raise _not_yet(self)


def _not_yet(value: Value, *_: Any) -> PipelineError:
    return PipelineError(f"the value of {node_of(value).name} is not there while a pipeline is read: use it in a step")


def _refuse(value: Value, *others: Any) -> NoReturn:
    raise _not_yet(value)


_OPERATIONS = "bool len iter getitem contains eq ne lt le gt ge add radd sub mul neg str format await call"
for _name in _OPERATIONS.split():
    setattr(Value, f"__{_name}__", _refuse)


def node_of(value: Value) -> Node:
    """The node of which this is the value."""
    node: Node = object.__getattribute__(value, "_node")
    return node


class GraphReader:
    """Reads a pipeline's function: gathers the steps that it calls."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.pipelines: list[str] = []  # that are being read, each called by the one before it
        self._uses: dict[str, int] = {}

    def add(self, work: "Step[..., Any]", given: Mapping[str, Any]) -> Value:
        """A use of a step with these arguments. Raises PipelineError."""
        if len(self.nodes) >= _MAX_NODES:
            raise PipelineError(f"{self.pipelines[0]} has more than {_MAX_NODES} steps")
        needs, constants = {}, {}
        for name, value in given.items():
            check(value, work.parameters[name], where=f"step {work.name}: {name}")
            if isinstance(value, Value):
                needs[name] = node_of(value)
            else:
                constants[name] = value
        uses = self._uses[work.name] = self._uses.get(work.name, 0) + 1
        name = work.name if uses == 1 else f"{work.name} {uses}"
        self.nodes.append(Node(name, work.returns, work, needs, constants))
        return Value(self.nodes[-1])

    def enter(self, pipeline: str) -> None:
        """Raises PipelineError where pipelines call each other without end."""
        if pipeline in self.pipelines:
            cycle = [*self.pipelines[self.pipelines.index(pipeline) :], pipeline]
            raise PipelineError(f"a cycle of pipelines: {' -> '.join(cycle)}")
        if len(self.pipelines) >= _MAX_DEPTH:
            raise PipelineError(f"more than {_MAX_DEPTH} pipelines call each other")
        self.pipelines.append(pipeline)


_trace: ContextVar[GraphReader | None] = ContextVar("embedline pipeline that is read", default=None)


def current() -> GraphReader | None:
    """The pipeline that is being read; None = none is."""
    return _trace.get()


def check(value: Any, wanted: Any, *, where: str) -> None:
    """Raises PipelineError where a value, or what a step will give, is not of the type that is wanted."""
    if isinstance(value, Value):
        node = node_of(value)
        given, source = node.kind, f"{node.name} gives"
    elif isinstance(value, _CONSTANTS):
        given, source = type(value), "this is"
    else:
        raise PipelineError(
            f"{where} takes what a step gives, an input, a text or a number, not {type(value).__name__}"
        )
    if not fits(given, wanted):
        raise PipelineError(f"{where} is {in_words(wanted)}, and {source} {in_words(given)}")


def read(trace: GraphReader, call: Any) -> Any:
    """Return what `call` returns while the trace gathers the steps that it calls."""
    token = _trace.set(trace)
    try:
        return call()
    finally:
        _trace.reset(token)


def fits(given: Any, wanted: Any) -> bool:
    """Whether a resolved annotation fits another. Any fits Any alone: nobody could say what else it is."""
    given, wanted = _plain(given), _plain(wanted)
    if given == wanted:
        return True
    if isinstance(given, typing.NewType):
        return fits(given.__supertype__, wanted)
    if typing.get_origin(given) is typing.Literal:
        return _literal_fits(given, wanted)
    if is_union(given):
        return all(fits(one, wanted) for one in typing.get_args(given))
    if is_union(wanted):
        return any(fits(given, one) for one in typing.get_args(wanted))
    return given is not Any and (wanted is object or _class_fits(given, wanted))


def in_words(kind: Any) -> str:
    """A type as people write it."""
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind).replace("typing.", "")


def is_union(kind: Any) -> bool:
    """`X | Y`, also as `Optional[X]` and `Union[X, Y]`."""
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _plain(kind: Any) -> Any:
    """The type without Annotated; None is the type of None."""
    if typing.get_origin(kind) is typing.Annotated:
        return typing.get_args(kind)[0]
    return types.NoneType if kind is None else kind


def _literal_fits(given: Any, wanted: Any) -> bool:
    values = typing.get_args(given)
    if typing.get_origin(wanted) is typing.Literal:
        return set(values) <= set(typing.get_args(wanted))
    return all(fits(type(value), wanted) for value in values)


def _class_fits(given: Any, wanted: Any) -> bool:
    own, other = typing.get_origin(given) or given, typing.get_origin(wanted) or wanted
    if not (isinstance(own, type) and isinstance(other, type)):
        return False
    if other in _NUMBERS.get(own, ()):
        return True
    try:
        if not issubclass(own, other):
            return False
    except TypeError:  # a Protocol that can't be asked
        return False
    return _arguments_fit(own, typing.get_args(given), other, typing.get_args(wanted))


def _arguments_fit(own: type, given: tuple[Any, ...], other: type, wanted: tuple[Any, ...]) -> bool:
    if not wanted:
        return True
    if own is tuple and other is not tuple:  # given as a Sequence, say
        inner = [one for one in given if one is not Ellipsis]
        return bool(inner) and all(fits(one, wanted[0]) for one in inner)
    if len(wanted) == 2 and wanted[1] is Ellipsis and Ellipsis not in given:
        return bool(given) and all(fits(one, wanted[0]) for one in given)
    if not given and len(wanted) == 1 and own is str:
        return fits(str, wanted[0])
    return len(given) == len(wanted) and all(
        one is another or another is Any or fits(one, another) for one, another in zip(given, wanted, strict=True)
    )


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

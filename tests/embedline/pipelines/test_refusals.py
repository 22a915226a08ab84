"""Pipelines that are put together wrong: each is refused before anything runs, with the names at fault."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from embedline import AsyncClient
from embedline.pipelines import PipelineError, pipeline, step


@step
async def number(text: str) -> int:
    return len(text)


@step
async def texts(number: int) -> list[str]:
    return ["a"] * number


@step
async def joined(parts: Sequence[str]) -> str:
    return "".join(parts)


def wrong(make: Callable[[], Any]) -> str:
    """What is said of a pipeline."""
    with pytest.raises(PipelineError) as refused:
        print(make().graph)
    return str(refused.value)


def test_a_step_gets_no_other_type_than_it_takes() -> None:
    @pipeline
    def lengths(text: str) -> str:
        return joined(number(text))  # type: ignore[arg-type]

    assert wrong(lambda: lengths) == "step joined: parts is collections.abc.Sequence[str], and number gives int"


def test_a_pipeline_returns_what_it_says() -> None:
    @pipeline
    def lengths(text: str) -> str:
        return number(text)  # type: ignore[return-value]

    assert wrong(lambda: lengths) == "what pipeline lengths returns is str, and number gives int"


def test_a_default_is_of_its_type() -> None:
    def lengths(text: str = 3) -> int:  # type: ignore[assignment]
        return number(text)

    assert wrong(lambda: pipeline(lengths)) == "pipeline lengths: the default of text is str, and this is int"


def test_pipelines_that_call_each_other_are_a_cycle() -> None:
    @pipeline
    def a(text: str) -> str:
        return b(text)

    @pipeline
    def b(text: str) -> str:
        return joined(texts(number(c(text))))

    @pipeline
    def c(text: str) -> str:
        return b(text)

    assert wrong(lambda: a) == "a cycle of pipelines: b -> c -> b"


def test_a_step_that_nothing_needs_is_refused() -> None:
    @pipeline
    def lengths(text: str) -> int:
        texts(number(text))
        return number(text)

    assert wrong(lambda: lengths) == "pipeline lengths: nothing needs what step texts gives"


def _looked_into(text: str) -> int:
    return number(text) if number(text) > 3 else number("long")


def _taken_apart(text: str) -> int:
    return number(joined([*texts(number(text))]))


def _without_steps(text: str) -> str:
    return text


def _given_a_list(text: str) -> str:
    return joined(["a", "b"])


def _no_argument(text: str) -> int:
    return number()  # type: ignore[call-arg]


def _no_steps_value(text: str) -> int:
    return 3


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (_looked_into, "the value of number is not there while a pipeline is read: use it in a step"),
        (_taken_apart, "the value of texts is not there while a pipeline is read: use it in a step"),
        (_without_steps, "pipeline _without_steps returns its input text, and calls no step for it"),
        (_given_a_list, "step joined: parts takes what a step gives, an input, a text or a number, not list"),
        (_no_argument, "number: missing a required argument: 'text'"),
        (_no_steps_value, "pipeline _no_steps_value must return what a step gives, not int"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_pipeline_only_calls_steps(function: Any, problem: str) -> None:
    assert wrong(lambda: pipeline(function)) == problem


def _plain(text: str) -> str:
    return text


async def _untyped(text) -> str:  # type: ignore[no-untyped-def]
    return "a"


async def _returns_nothing_known(text: str):  # type: ignore[no-untyped-def]
    return text


async def _any_number(*text: str) -> str:
    return "a"


async def _client_last(text: str, client: AsyncClient) -> str:
    return text


async def _unknown(text: "Missing") -> str:  # type: ignore[name-defined]  # noqa: F821
    return "a"


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (_plain, "_plain: a step is an async function; it can use asyncio.to_thread"),
        (_untyped, "_untyped: parameter text has no type"),
        (_returns_nothing_known, "_returns_nothing_known: it does not say the type that it returns"),
        (_any_number, "_any_number: parameter text has no name of its own for who calls it"),
        (_client_last, "_client_last: the AsyncClient is the first parameter of a step that takes one"),
        (_unknown, "_unknown: a type is not there at run time: name 'Missing' is not defined"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_step_is_an_async_function_with_types(function: Any, problem: str) -> None:
    assert wrong(lambda: step(function)) == problem


def test_a_pipeline_is_no_async_function() -> None:
    async def late(text: str) -> str:
        return text

    assert "a pipeline is a plain function" in wrong(lambda: pipeline(late))


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_time_is_more_than_nothing(seconds: float) -> None:
    assert "timeout must be a number of seconds above 0" in wrong(lambda: step(timeout=seconds)(number.function))
    assert "timeout must be a number of seconds above 0" in wrong(lambda: pipeline(timeout=seconds)(_no_argument))


def test_steps_and_pipelines_are_not_called_like_functions() -> None:
    assert "is called in a pipeline's function" in wrong(lambda: number("a"))
    assert "is run with" in wrong(lambda: pipeline(_no_argument)("a"))

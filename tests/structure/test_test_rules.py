"""Rules for the tests themselves: they wait for events and not for time, and take whatever port is free.

None has a limit of its own below pytest's, which a busy machine could reach.
"""

import ast
import tomllib
from collections.abc import Iterator

import pytest

from tests.planted_mistakes import place_of
from tests.structure.mistakes import MISTAKES
from tests.structure.sources import ROOT, dotted
from tests.tiers import tier_asked

MAX_SLEEP = 0.02  # seconds: the turn of an event loop, or what a wrong answer would need to arrive
LISTENING = frozenset({"bind", "create_server"})
LIMIT = float(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["timeout"])


def problems(tree: ast.AST) -> Iterator[str]:
    """What in a test is against the rules, in words."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name, first = dotted(call.func), call.args[0] if call.args else None
        if name == "time.sleep":
            yield "sleeps"
        if name == "asyncio.sleep" and (seconds := number_in(first)) > MAX_SLEEP:
            yield f"sleeps for {seconds:g} s"
        if name.rpartition(".")[2] in LISTENING and isinstance(first, ast.Tuple) and number_in(first.elts[1]):
            yield f"listens at port {number_in(first.elts[1]):g}"
        if name == "pytest.mark.timeout" and 0 < number_in(first) <= LIMIT:
            yield f"is ended after {number_in(first):g} s, which a busy machine may need"


def number_in(node: ast.expr | None) -> float:
    """The number that is written there; 0 for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int | float) else 0


def test_tests_wait_for_events_and_take_any_port() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    found = {str(file.relative_to(ROOT)): list(problems(ast.parse(file.read_text()))) for file in files}
    assert {file: those for file, those in found.items() if those} == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("time.sleep(1)", "sleeps"),
        ("await asyncio.sleep(0.5)", "sleeps for 0.5 s"),
        ("listener.bind(('127.0.0.1', 8080))", "listens at port 8080"),
        ("socket.create_server(('', 80))", "listens at port 80"),
        ("pytest.mark.timeout(300)", "is ended after 300 s, which a busy machine may need"),
    ],
)
def test_a_planted_problem_is_found(text: str, problem: str) -> None:
    assert list(problems(ast.parse(f"async def test():\n    {text}"))) == [problem]


@pytest.mark.parametrize(
    "text",
    [
        "await asyncio.sleep(0)",
        "listener.bind(('127.0.0.1', 0))",
        "listener.bind(path)",
        "pytest.mark.timeout(1800)",
    ],
)
def test_what_only_looks_alike_is_left_alone(text: str) -> None:
    assert list(problems(ast.parse(f"async def test():\n    {text}"))) == []


@pytest.mark.parametrize(
    ("tier", "marks", "expected"),
    [
        (None, "", "all"),
        (None, "faults", "all"),
        (None, "not nightly", "all"),
        (None, "nightly", "nightly"),
        ("rest", "nightly", "rest"),
        ("nightly", "", "nightly"),
    ],
)
def test_the_tier_is_asked_for_by_flag_or_marker(tier: str | None, marks: str, expected: str) -> None:
    assert tier_asked(tier, marks) == expected


def test_every_mistake_can_still_be_planted() -> None:
    assert [mistake.name for mistake in MISTAKES if place_of(mistake, ROOT) is None] == []

"""The file of --pipelines: what is in it, and one line for each way in which it can be wrong."""

from pathlib import Path

import pytest

from server.features.pipelines.loading import PipelinesUnusable, load

GOOD = """
from embedline.pipelines import pipeline, step
from embedline_test_beside import ANSWER

@step
async def length(text: str) -> int:
    return len(text) + ANSWER

@pipeline
def search(text: str) -> int:
    return length(text)
"""
SECOND = """
first = search

@pipeline
def search(text: str) -> int:
    return length(text)
"""
CYCLE = """
@pipeline
def again(text: str) -> int:
    return other(text)

@pipeline
def other(text: str) -> int:
    return again(text)
"""


def wrong(folder: Path, text: str) -> str:
    (folder / "embedline_test_beside.py").write_text("ANSWER = 42")
    file = folder / "mine.py"
    file.write_text(text)
    with pytest.raises(PipelinesUnusable) as refused:
        load(str(file))
    message = str(refused.value)
    assert message.startswith(f"--pipelines {file}: ")
    return message.removeprefix(f"--pipelines {file}: ")


async def test_a_file_and_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "embedline_test_beside.py").write_text("ANSWER = 42")
    (tmp_path / "mine.py").write_text(GOOD)
    found = load(str(tmp_path / "mine.py"))
    assert list(found) == ["search"]
    assert await found["search"].run(None, text="abc") == 45


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import os\n\nos.nothing\n", "line 3: AttributeError: module 'os' has no attribute 'nothing'"),
        ("def search(:\n", "line 1: SyntaxError: invalid syntax"),
        ("import sys\nsys.exit('no index')", "line 2: SystemExit: no index"),
        ("raise KeyboardInterrupt", "line 1: KeyboardInterrupt"),
        ("x = 3", "it has no pipeline; @pipeline makes one of a function"),
        (GOOD + SECOND, "two pipelines have the same name"),
        (GOOD + CYCLE, "line 19: a cycle of pipelines: again -> other -> again"),
        (
            GOOD.replace("-> int:\n    return length", "-> str:\n    return length"),
            "what pipeline search returns is str",
        ),
        (
            GOOD.replace("text: str) -> int:\n    return len(", "text) -> int:\n    return len("),
            "line 5: length: parameter",
        ),
    ],
    ids=["raises", "syntax", "exits", "interrupts", "none", "same name", "cycle", "types", "untyped"],
)
def test_what_is_wrong_is_said_in_one_line(text: str, problem: str, tmp_path: Path) -> None:
    assert wrong(tmp_path, text).startswith(problem)


@pytest.mark.parametrize(
    ("name", "problem"), [("nothing.py", "there is no such file"), ("mine.txt", r"its name must end in \.py")]
)
def test_a_file_that_is_not_there_or_no_python(name: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(GOOD)
    with pytest.raises(PipelinesUnusable, match=f"{name}: {problem}"):
        load(str(tmp_path / name))

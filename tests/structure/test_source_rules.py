"""Rules for every source file that a reader of its syntax tree can check."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.structure.sources import ROOT, Source, dotted, imported_names, is_within, sources

# They run code out of data, or start processes in a way that this program doesn't.
FORBIDDEN_MODULES = ("pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "multiprocessing")
# Found as they stand here, and as `from time import sleep` imports them.
FORBIDDEN_CALLS = frozenset(
    {"eval", "exec", "os.system", "os.popen", "os.fork", "time.sleep", "torch.load", "yaml.load", "yaml.unsafe_load"}
)
FORBIDDEN_TRUE_KEYWORDS = frozenset({"shell", "allow_pickle", "trust_remote_code"})
FORBIDDEN_FILE_NAMES = frozenset({"utils.py", "util.py", "common.py", "helpers.py", "misc.py"})
EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})
MAX_LINES = 300


def violations(source: Source) -> list[str]:
    """What in this file is against the rules, in words."""
    tree = source.tree()
    found = [f"imports {name}" for name in imported_names(tree) if is_within(name, FORBIDDEN_MODULES)]
    found += [f"imports {name}" for name in imported_names(tree) if name in FORBIDDEN_CALLS]
    found += [problem for node in ast.walk(tree) if isinstance(node, ast.Call) for problem in call_problems(node)]
    if ast.get_docstring(tree) is None:
        found.append("has no docstring")
    if source.text.count("\n") > MAX_LINES:
        found.append(f"has more than {MAX_LINES} lines")
    if source.path.name in FORBIDDEN_FILE_NAMES:
        found.append(f"is called {source.path.name}")
    return found


def call_problems(call: ast.Call) -> Iterator[str]:
    name = dotted(call.func)
    if name in FORBIDDEN_CALLS:
        yield f"calls {name}"
    for keyword in call.keywords:
        is_true = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        if keyword.arg in FORBIDDEN_TRUE_KEYWORDS and is_true:
            yield f"passes {keyword.arg}=True"


def wildcard_addresses(source: Source) -> int:
    """How often this file names the address that means every interface."""
    constants = [node.value for node in ast.walk(source.tree()) if isinstance(node, ast.Constant)]
    return sum(value in EVERY_ADDRESS for value in constants if isinstance(value, str))


@pytest.mark.parametrize("source", sources(), ids=lambda source: str(source.path))
def test_source_keeps_the_rules(source: Source) -> None:
    assert violations(source) == []


def test_only_one_default_listens_on_every_interface() -> None:
    naming = {str(source.path): wildcard_addresses(source) for source in sources() if wildcard_addresses(source)}
    assert all(path.startswith("server/") for path in naming)
    assert sum(naming.values()) <= 1, naming


def test_each_package_folder_says_that_it_is_one() -> None:
    """A folder without __init__.py would be left out of the wheel."""
    folders = {ROOT / source.path.parent for source in sources()}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize(
    ("text", "violation"),
    [
        ("import pickle", "imports pickle"),
        (
            "from multiprocessing.shared_memory import SharedMemory",
            "imports multiprocessing.shared_memory.SharedMemory",
        ),
        ("from time import sleep", "imports time.sleep"),
        ("time.sleep(1)", "calls time.sleep"),
        ("eval('1')", "calls eval"),
        ("def f():\n    exec('1')", "calls exec"),
        ("torch.load(path)", "calls torch.load"),
        ("subprocess.run('ls', shell=True)", "passes shell=True"),
        ("AutoModel.from_pretrained(path, trust_remote_code=True)", "passes trust_remote_code=True"),
        ("\n" * 301, "has more than 300 lines"),
    ],
)
def test_a_planted_violation_is_found(text: str, violation: str) -> None:
    assert violations(Source(Path("engine/a.py"), f'"""Planted."""\n{text}')) == [violation]


def test_a_file_without_docstring_or_with_an_empty_name_is_found() -> None:
    assert violations(Source(Path("wire/utils.py"), "import os")) == ["has no docstring", "is called utils.py"]


@pytest.mark.parametrize("text", ["model.eval()", "subprocess.run(['ls'])", "asyncio.sleep(0)", "run(shell=False)"])
def test_what_only_looks_alike_is_left_alone(text: str) -> None:
    assert violations(Source(Path("engine/a.py"), f'"""Planted."""\n{text}')) == []


def test_a_planted_address_is_counted() -> None:
    assert wildcard_addresses(Source(Path("wire/a.py"), "host = '0.0.0.0'\nother = '127.0.0.1'")) == 1

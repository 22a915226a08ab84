"""Rules for every source file that a reader of its syntax tree can check."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.structure.sources import ROOT, Source, dotted, is_within, sources

# They run code out of data, or start processes in a way that this program doesn't.
FORBIDDEN_MODULES = ("pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "multiprocessing")
# Found as they stand here, and as `from time import sleep` imports them.
FORBIDDEN_CALLS = frozenset(
    {
        "eval",
        "exec",
        "os.system",
        "os.popen",
        "os.fork",
        "time.sleep",
        "os.cpu_count",
        "os.process_cpu_count",
        "os.sched_getaffinity",
        "torch.load",
        "torch.serialization.add_safe_globals",
        "torch.serialization.safe_globals",
        "yaml.load",
        "yaml.unsafe_load",
    }
)
# May call torch.load, with weights_only=True; only the converting process, which has no network, imports it.
READS_PICKLES = Path("engine/convert/pickle_to_safetensors.py")
# The one place that counts cores; it knows the affinity and the container's quota.
COUNTS_CORES = Path("engine/machine/cores.py")
FORBIDDEN_TRUE_KEYWORDS = frozenset({"shell", "allow_pickle", "trust_remote_code"})
FORBIDDEN_FILE_NAMES = frozenset({"utils.py", "util.py", "common.py", "helpers.py", "misc.py"})
EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})


def violations(source: Source) -> list[str]:
    """What in this file is against the rules, in words."""
    tree = source.tree()
    found = [f"imports {name}" for name in source.imports() if is_within(name, FORBIDDEN_MODULES)]
    found += [f"imports {name}" for name in source.imports() if name in FORBIDDEN_CALLS]
    raised = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    found += ["raises a bare Exception" for call in raised if dotted(call.func) == "Exception"]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if source.path == READS_PICKLES:
        calls = [call for call in calls if not loads_weights_only(call)]
    if source.path == COUNTS_CORES:
        calls = [call for call in calls if dotted(call.func) != "os.sched_getaffinity"]
    found += [problem for call in calls for problem in call_problems(call)]
    if ast.get_docstring(tree) is None:
        found.append("has no docstring")
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


def loads_weights_only(call: ast.Call) -> bool:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    value = given.get("weights_only")
    is_true = isinstance(value, ast.Constant) and value.value is True
    return dotted(call.func) == "torch.load" and is_true and None not in given  # None: **keywords


def wildcard_addresses(source: Source) -> int:
    """How often this file names the address that means every interface."""
    constants = [node.value for node in ast.walk(source.tree()) if isinstance(node, ast.Constant)]
    return sum(value in EVERY_ADDRESS for value in constants if isinstance(value, str))


@pytest.mark.holds("No data is run as code")
def test_source_keeps_the_rules() -> None:
    assert {str(source.path): found for source in sources() if (found := violations(source))} == {}


def test_only_one_default_listens_on_every_interface() -> None:
    naming = {str(source.path): found for source in sources() if (found := wildcard_addresses(source))}
    assert all(path.startswith("server/") for path in naming)
    assert sum(naming.values()) <= 1, naming


def hiding_locals(source: Source) -> Iterator[str]:
    """Names that a function gives to something of its own, though its module means something else by them."""
    tree = source.tree()
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    known = {alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names}
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    known |= {node.name for node in tree.body if isinstance(node, functions | ast.ClassDef)}
    for function in (node for node in ast.walk(tree) if isinstance(node, functions)):
        given = {
            node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        bound = [alias for node in ast.walk(function) if isinstance(node, ast.ImportFrom) for alias in node.names]
        given |= {alias.asname or alias.name for alias in bound} & {function.name}
        yield from (f"{function.name}: {name}" for name in sorted(given & known))


def test_no_local_name_hides_one_of_the_module() -> None:
    assert {str(source.path): found for source in sources() if (found := [*hiding_locals(source)])} == {}


@pytest.mark.parametrize("hiding", ["os = 1", "[print(g) for g in ()]", "from ray import f"])
def test_a_planted_local_name_that_hides_is_found(hiding: str) -> None:
    text = f"import os\n\ndef g():\n    pass\n\ndef f(os):\n    {hiding}"
    assert len([*hiding_locals(Source(Path("engine/a.py"), text))]) == 1


@pytest.mark.holds("Pickles are read only by one isolated process")
def test_pickles_are_read_in_one_place_by_one_process() -> None:
    module = ".".join(READS_PICKLES.with_suffix("").parts)
    importing = {str(source.path) for source in sources() if module in source.imports()}
    (reading,) = [source for source in sources() if source.path == READS_PICKLES]
    calls = [node for node in ast.walk(reading.tree()) if isinstance(node, ast.Call)]
    assert sum(map(loads_weights_only, calls)) == 1
    assert importing == {"engine/convert/process.py"}
    imported = {name for source in sources() for name in source.imports()}
    assert "engine.convert.process" not in imported  # it is started, as a process of its own


def test_messages_between_processes_are_frozen() -> None:
    found = [source for source in sources() if source.path.name == "messages.py"]
    classes = [node for source in found for node in ast.walk(source.tree()) if isinstance(node, ast.ClassDef)]
    decorated = {node.name: ast.unparse(one) for node in classes for one in node.decorator_list}
    assert len(found) >= 3
    assert [name for name, text in decorated.items() if "dataclass" in text and "frozen=True" not in text] == []


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
        ("threads = os.cpu_count() or 1", "calls os.cpu_count"),
        ("def f():\n    exec('1')", "calls exec"),
        ("torch.load(path)", "calls torch.load"),
        ("subprocess.run('ls', shell=True)", "passes shell=True"),
        ("AutoModel.from_pretrained(path, trust_remote_code=True)", "passes trust_remote_code=True"),
        ("raise Exception('?')", "raises a bare Exception"),
    ],
)
def test_a_planted_violation_is_found(text: str, violation: str) -> None:
    assert violations(Source(Path("engine/a.py"), f'"""Planted."""\n{text}')) == [violation]


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        (READS_PICKLES, "path"),
        (READS_PICKLES, "path, weights_only=False"),
        (READS_PICKLES, "path, weights_only=safe"),
        (READS_PICKLES, "path, weights_only=True, **more"),
        (Path("engine/a.py"), "path, weights_only=True"),
    ],
    ids=str,
)
def test_a_pickle_that_is_read_otherwise_is_found(path: Path, arguments: str) -> None:
    assert violations(Source(path, f'"""Planted."""\ntorch.load({arguments})')) == ["calls torch.load"]


def test_a_file_without_docstring_or_with_an_empty_name_is_found() -> None:
    assert violations(Source(Path("wire/utils.py"), "import os")) == ["has no docstring", "is called utils.py"]


@pytest.mark.parametrize("text", ["model.eval()", "subprocess.run(['ls'])", "asyncio.sleep(0)", "run(shell=False)"])
def test_what_only_looks_alike_is_left_alone(text: str) -> None:
    assert violations(Source(Path("engine/a.py"), f'"""Planted."""\n{text}')) == []


def test_a_planted_address_is_counted() -> None:
    assert wildcard_addresses(Source(Path("wire/a.py"), "host = '0.0.0.0'\nother = '127.0.0.1'")) == 1

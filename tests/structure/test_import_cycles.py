"""No module imports itself by way of others, at its top or inside a function, so they can be read in one order."""

import graphlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.structure.sources import Source, sources


def imports_of(files: Iterable[Source]) -> dict[str, set[str]]:
    """Which of these modules each of them imports, wherever in the file."""
    imported = {source.module: source.imports() for source in files}
    found: dict[str, set[str]] = {}
    for module, names in imported.items():
        owners = {module_of(name, imported) for name in names}
        found[module] = {owner for owner in owners if owner not in (None, module)}
    return found


def module_of(name: str, modules: Mapping[str, object]) -> str | None:
    """The module that an imported name is or comes from; None where it is none of these."""
    owner = name.rpartition(".")[0]
    return next((each for each in (name, owner) if each in modules), None)


def cycle_in(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """Modules that each import the next, the last of which is the first; empty where there is no cycle."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle[::-1]  # graphlib lists what is imported first
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert cycle_in(imports_of(sources())) == []


@pytest.mark.parametrize(
    ("first", "second", "is_cycle"),
    [
        ("from engine import b", "from engine.a import A", True),
        ("import engine.b", "def f():\n    from engine import a", True),
        ("from engine.b import B", "import_module('engine.a')", True),
        ("from engine.b import B", "import numpy", False),
        ("import a", "import b", False),
    ],
)
def test_a_planted_cycle_is_found(first: str, second: str, is_cycle: bool) -> None:
    files = [Source(Path("engine/a.py"), first), Source(Path("engine/b.py"), second)]
    assert bool(cycle_in(imports_of(files))) is is_cycle
    assert len(cycle_in(imports_of(files))) in (0, 3)

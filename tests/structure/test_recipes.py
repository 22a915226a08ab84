"""CONTRIBUTING's recipes: what they say a change touches is all there is of a dialect, an engine, an architecture.

tests/parity/test_coverage.py counts the cases of an architecture's row; flags and metrics are counted by their pages.
"""

import ast
import re
from collections.abc import Iterator

from engine.model.coverage import ARCHITECTURES
from engine.registry import ENGINES
from server.dialects.table import ROUTES
from tests.structure.sources import ROOT, sources

API = (ROOT / "docs" / "api.md").read_text()


def test_a_dialect_is_a_file_a_row_a_test_and_a_line() -> None:
    files = {source.module for source in sources("server") if has_routes(source.tree())} - {"server.dialects.table"}
    asked = "".join(file.read_text() for file in (ROOT / "tests" / "server" / "dialects").rglob("test_*.py"))

    assert len(files) > 5
    used = {part.__module__ for route in ROUTES for part in (route.decode, route.encode)}
    assert files <= used, "the ROUTES of a file are not in the table"
    assert [route.path for route in ROUTES if f'"{route.path}"' not in asked] == [], "no test asks it"
    assert [route.path for route in ROUTES if not re.search(f"`(POST )?{route.path}`", API)] == []


def has_routes(module: ast.Module) -> bool:
    """Whether it assigns ROUTES."""
    assigned = [node.targets[0] for node in module.body if isinstance(node, ast.Assign)]
    assigned += [node.target for node in module.body if isinstance(node, ast.AnnAssign)]
    return any(isinstance(target, ast.Name) and target.id == "ROUTES" for target in assigned)


def test_an_engine_has_a_row_in_the_table_of_engines() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    named = re.findall(r"^\| `([a-z-]+)` \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
    assert sorted(named) == sorted(ENGINES)


def test_an_architecture_is_one_row() -> None:
    """Tests make its tiny model from the row."""
    names = {row.name for row in ARCHITECTURES}
    listed = {source.module for source in sources() if names & set(strings(source.tree()))}
    assert listed == {"engine.model.coverage"}


def strings(module: ast.Module) -> Iterator[str]:
    """All that are written in it."""
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value

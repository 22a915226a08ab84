"""CONTRIBUTING's recipes: what they say a change touches is all there is of a dialect, an engine, an architecture.

tests/parity/test_coverage.py counts the cases of an architecture's row; flags and metrics are counted by their pages.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import get_args

from engine.model import tasks
from engine.model.coverage import ARCHITECTURES
from engine.registry import ENGINES
from server.dialects.reading.json_body import KNOWN_FIELDS
from server.dialects.table import ROUTES
from tests.structure.sources import ROOT, sources

API = (ROOT / "docs" / "api.md").read_text()


def test_a_dialect_is_a_file_a_row_a_test_and_a_line() -> None:
    files = {source.module for source in sources("server") if has_routes(source.tree())} - {"server.dialects.table"}
    asked = "".join(file.read_text() for file in (ROOT / "tests" / "server" / "dialects").rglob("test_*.py"))

    assert len(files) > 5
    used = {part.__module__ for route in ROUTES for part in route.stages or (route.choose,)}
    assert files <= used, "the ROUTES of a file are not in the table"
    assert [route.path for route in ROUTES if f'"{route.path}"' not in asked] == [], "no test asks it"
    assert [route.path for route in ROUTES if not re.search(f"`(POST )?{route.path}`", API)] == []


# Names of fields that stand in another file too.
ELSEWHERE = {
    "chat_template_kwargs": "what the template of chats gets, and that of a reranker",
    "chunk_size": "what vLLM's late_chunking_params has in it, and a field of Voyage's",
    "dimensions": "what Weaviate is told of a model",
    "images": "a word of an error",
    "input_type": "Cohere's example",
    "prompt": "the text itself, at vLLM's /tokenize and at Ollama's older route",
    "task": "what vLLM's /pooling computes, and what Weaviate is told of a model",
    "top_k": "Mixedbread's answer repeats it",
}


def test_the_name_of_a_field_stands_in_one_file() -> None:
    """As an attribute with a row, or as a string; inputs stand where a vendor has them."""
    options = {name for name, row in KNOWN_FIELDS.items() if row.neutral is not None and row.items is None}
    found: dict[str, set[str]] = defaultdict(set)
    for source in sources("server"):
        if source.module.startswith("server.dialects."):
            for name in options.intersection((*strings(source.tree()), *with_rows(source.tree()))):
                found[name].add(source.module)
    assert found.keys() >= options
    assert {name for name, files in found.items() if len(files) > 1} == ELSEWHERE.keys()


def with_rows(module: ast.Module) -> Iterator[str]:
    """The attributes that may have a row."""
    for node in ast.walk(module):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Subscript(value=ast.Name(id="Annotated"))):
                yield name


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


def test_a_head_is_in_the_files_that_the_recipe_names() -> None:
    """Besides the rules that find heads, and the files that compute one head each."""
    names = {head.__name__ for head in get_args(tasks.Head)}
    places = {source.module: names & set(names_of(source.tree())) for source in sources("engine", "server")}
    complete = {module for module, found in places.items() if found == names}

    assert complete == {"engine.model.tasks", "engine.transformers.heads", "engine.cpu.outputs"}
    of_library = {head.__name__ for head in get_args(tasks.TransformersHead)}
    with_library = {module for module, found in places.items() if found >= of_library}
    assert with_library - complete == {
        "engine.transformers.loading",
        "engine.transformers.reference",
        "engine.cpu.tracing",
        "engine.fused.adapters.heads",
    }
    recipe = " ".join((ROOT / "CONTRIBUTING.md").read_text().split("**A head.**")[1].split("**An engine.**")[0].split())
    assert [module for module in complete | with_library if f"{module.replace('.', '/')}.py" not in recipe] == []


def names_of(module: ast.Module) -> Iterator[str]:
    """All names that are used or defined in it."""
    for node in ast.walk(module):
        match node:
            case ast.Name(id=name) | ast.ClassDef(name=name):
                yield name

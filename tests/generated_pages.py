"""The pages of docs/ that are made from the source: `make docs` writes them, tests/test_docs.py compares them.

The code map comes from docstrings, the lists of tests from the marker `holds`; flags, metrics and the table of models
come from their own modules, and fields from the routes' bodies. The first two import nothing, so files may be moved
freely.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from engine.model.coverage import ARCHITECTURES, Use
from server.dialects.fields.field import names_of, rows_of, structs_in
from server.dialects.reading.inputs import ChatFields
from server.dialects.reading.json_body import KNOWN_FIELDS, NOWHERE
from server.dialects.table import ROUTES
from tests.parity.repositories import table as repositories
from tests.server.api_pages.fields import FIELDS, table
from tests.server.metrics import metrics_page
from tests.server.settings import flags_page

ROOT = Path(__file__).resolve().parents[1]
COMMAND = ".venv/bin/python -m tests.generated_pages"
PACKAGES = ("embedline", "server", "tokenizer_pool", "batch_manager", "engine", "wire")
BEGIN, END = "<!-- made by `make docs` -->", "<!-- up to here -->"
_CODE_MAP = """# Code map

Every file of the source, by folder: the first sentence of its docstring. `make docs` makes this page.
"""
_HELD_BY = """# Held by

The tests that check each [invariant](invariants.md) and each section of [behaviour](behaviour.md). The marker
`@pytest.mark.holds("…")` names the titles. `make docs` makes this page; `make test ARGS="-m holds"` runs these tests.
"""


def first_sentence(file: Path) -> str:
    """Of a module's docstring, on one line."""
    paragraph = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n\n")[0]
    return re.split(r"(?<=\.)\s(?=[A-Z`])", " ".join(paragraph.split()))[0]


def folders() -> list[Path]:
    """Every folder with code, relative to the root: the packages in their order, each with those inside it."""
    found = [file.parent.relative_to(ROOT) for name in PACKAGES for file in sorted((ROOT / name).rglob("__init__.py"))]
    return sorted(found, key=lambda folder: (PACKAGES.index(folder.parts[0]), folder))


def folder_map() -> str:
    """A line for each folder."""
    lines = [f"- `{folder}/`: {first_sentence(ROOT / folder / '__init__.py')}" for folder in folders()]
    return "\n".join(lines)


def code_map() -> str:
    """docs/code-map.md."""
    sections = [_CODE_MAP]
    for folder in folders():
        files = sorted(file for file in (ROOT / folder).glob("*.py") if file.name != "__init__.py")
        lines = [f"- `{file.name}`: {first_sentence(file)}\n" for file in files]
        sections.append(f"## {folder}/\n\n{first_sentence(ROOT / folder / '__init__.py')}\n\n{''.join(lines)}")
    return "\n".join(section.rstrip("\n") + "\n" for section in sections)


def invariants() -> list[str]:
    """Their titles, in the order of the page."""
    return re.findall(r"^- \*\*(.+?)\.\*\*", (ROOT / "docs" / "invariants.md").read_text(), re.MULTILINE)


def promises() -> list[str]:
    """The sections of docs/behaviour.md."""
    return re.findall(r"^## (.+)$", (ROOT / "docs" / "behaviour.md").read_text(), re.MULTILINE)


def held_by() -> dict[str, dict[str, list[str]]]:
    """Title -> file of tests -> names of tests; no name where the whole file is marked."""
    found: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, titles in marked(ast.parse(file.read_text())):
            for title in titles:
                names = found[title].setdefault(str(file.relative_to(ROOT)), [])
                names.extend([name] if name else [])
    return found


def marked(module: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """Tests that hold something, with the titles; "" stands for all of the file (`pytestmark = …`)."""
    markers: list[ast.expr]
    for node in module.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                name, markers = node.name, node.decorator_list
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                name, markers = "", value.elts if isinstance(value, ast.List) else [value]
            case ast.Expr(value=ast.Call(func=ast.Call() as called, args=[ast.Name(id=name)])):
                markers = [called]
            case _:
                continue
        for marker in markers:
            if isinstance(marker, ast.Call) and ast.unparse(marker.func) == "pytest.mark.holds":
                yield name, [ast.literal_eval(argument) for argument in marker.args]


def held_by_page() -> str:
    """docs/held-by.md."""
    found = held_by()
    sections = [_HELD_BY]
    for heading, titles in (("Invariants", invariants()), ("Behaviour", promises())):
        entries = [f"- **{title}**\n{''.join(map(_line, found.get(title, {}).items()))}" for title in titles]
        sections.append(f"## {heading}\n\n{''.join(entries)}")
    return "\n".join(sections)


def _line(tests: tuple[str, list[str]]) -> str:
    file, names = tests
    return f"  - `{file}`{': ' if names else ''}{', '.join(f'`{name}`' for name in names)}\n"


def architecture() -> str:
    """docs/ARCHITECTURE.md with the map of folders as it is now."""
    return with_made("docs/ARCHITECTURE.md", folder_map())


def with_made(path: str, *made: str) -> str:
    """A page with what is made of it as it is now: each part between its own marks."""
    found = re.split(f"{BEGIN}.*?{END}", (ROOT / path).read_text(), flags=re.DOTALL)
    assert len(found) == len(made) + 1, path
    parts = (f"{BEGIN}\n\n{part}\n\n{END}{text}" for part, text in zip(made, found[1:], strict=True))
    return found[0] + "".join(parts)


def models() -> str:
    """docs/models.md with the tables of repositories and architectures as they are now."""
    return with_made("docs/models.md", repositories.table(), architectures())


def architectures() -> str:
    """A line for each architecture of coverage.py: the engines that give each use."""
    lines = [f"| architecture | {' | '.join(Use)} |", "|---" * (1 + len(Use)) + "|"]
    for row in ARCHITECTURES:
        name = f"{row.name} (`{row.model_type}`)" if row.model_type else row.name
        lines.append(f"| {name} | {' | '.join(', '.join(row.engines(use)) or 'no' for use in Use)} |")
    return "\n".join(lines)


def api() -> str:
    """docs/api.md with the table of fields as it is now."""
    return with_made("docs/api.md", fields())


def api_page(name: str) -> str:
    """A page of docs/api/ with the table of its API's fields as it is now."""
    return with_made(f"docs/api/{name}.md", table(name))


def fields() -> str:
    """A line for each field that changes a result in any dialect."""
    # the first of the routes with one body; POST / has the bodies of others
    by_body = {route.body: route for route in reversed(ROUTES) if route.path not in ("/", "/invocations")}
    honoured: dict[str, list[str]] = defaultdict(list)
    for route in reversed(by_body.values()):
        chats = (body for body in route.more_bodies if issubclass(body, ChatFields))
        for name in dict.fromkeys(names_of(route.body, *chats)):
            honoured[name].append(f"`{route.path}`")
    head = "| field | whose name it is | what it says | honoured by | elsewhere refused, unless it is null |"
    lines = [head, "|---|---|---|---|---|"]
    # of two rows of one name the first route's is shown, whichever module was imported first
    bodies = [body for route in reversed(ROUTES) for body in (*route.more_bodies, route.body) if body is not None]
    shown = {name: row for body in bodies for struct in structs_in(body) for name, row in rows_of(struct).items()}
    for name in sorted(KNOWN_FIELDS, key=lambda known: (known in NOWHERE, known)):
        row = shown.get(name, KNOWN_FIELDS[name])
        if row.neutral is None:
            continue
        neutral = ", ".join(f"`{msgspec.json.encode(value).decode()}`" for value in row.neutral)
        effect = f"{row.by or 'OpenAI'} | {row.says}"
        lines.append(f"| `{name}` | {effect} | {', '.join(honoured[name])} | {f'or {neutral}' if neutral else ''} |")
    return "\n".join(lines)


PAGES: dict[str, Callable[[], str]] = {
    "docs/ARCHITECTURE.md": architecture,
    "docs/api.md": api,
    "docs/code-map.md": code_map,
    "docs/flags.md": flags_page.page,
    "docs/held-by.md": held_by_page,
    "docs/metrics.md": metrics_page.page,
    "docs/models.md": models,
    **{f"docs/api/{name}.md": partial(api_page, name) for name in FIELDS},
}


if __name__ == "__main__":
    for path, make in PAGES.items():
        (ROOT / path).write_text(make())

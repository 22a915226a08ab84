"""The documentation against the source: what a page names is there, and what must be on a page is."""

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest

import batch_manager.messages
import engine.messages
import tokenizer_pool.messages
from server.levels import LEVELS
from server.metrics_declared import ALL
from server.process_metrics import PROCESS_LEVELS
from tests.documents import ROOT, examples, flags_in, known_flags, pages, prose
from tests.structure.sources import PACKAGES, sources
from wire import control, frames

ARCHITECTURE = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
PAGES = [str(page) for page in pages()]
# Pages that name other programs' flags too.
FLAG_PAGES = ["docs/ARCHITECTURE.md", "docs/behaviour.md", "docs/models.md"]


def section(title: str) -> str:
    """What stands below a heading of the second level of ARCHITECTURE.md."""
    _, _, rest = ARCHITECTURE.partition(f"\n## {title}\n")
    text, _, _ = rest.partition("\n## ")
    assert text, title
    return text


def names_in(path: Path) -> set[str]:
    """Functions, classes and variables of a file as `name`, and those in its classes as `Class.name`."""
    tree = ast.parse(path.read_text())
    found = {name for node in tree.body for name in names_of(node)}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return found | {f"{one.name}.{name}" for one in classes for node in one.body for name in names_of(node)}


def names_of(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


@pytest.mark.parametrize(
    ("path", "name"), re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", ARCHITECTURE), ids=lambda value: str(value)
)
def test_a_test_that_is_named_exists(path: str, name: str) -> None:
    assert name in names_in(ROOT / path)


def test_every_invariant_names_a_test() -> None:
    invariants = re.findall(r"^- \*\*.*?(?=^- |^#|\Z)", section("Invariants"), re.MULTILINE | re.DOTALL)

    assert len(invariants) > 20
    assert [text for text in invariants if not re.search(r"`tests/[\w/]+\.py::\w+`", text)] == []


@pytest.mark.parametrize(
    ("path", "name"), re.findall(r"`([a-z][\w/]+\.py):([\w.]+)`", ARCHITECTURE), ids=lambda value: str(value)
)
def test_a_function_that_is_named_exists(path: str, name: str) -> None:
    assert name in names_in(ROOT / path)


def test_the_code_map_has_every_module_and_no_other() -> None:
    mapped: set[str] = set()
    for package, lines in re.findall(r"^### (\w+)/\n(.*?)(?=^### |\Z)", section("Code map"), re.MULTILINE | re.DOTALL):
        mapped.update(f"{package}/{name}" for name in re.findall(r"^- `([\w/]+\.py)`: ", lines, re.MULTILINE))

    assert mapped == {str(source.path) for source in sources(*PACKAGES) if source.path.name != "__init__.py"}


def kinds_in(module: ModuleType) -> dict[int, str]:
    """The frame kinds that a module declares."""
    return {value: name for name, value in vars(module).items() if name.isupper() and type(value) is int}


def test_every_kind_of_frame_is_in_the_table() -> None:
    declared = {frames.HELLO: "HELLO"}
    for module in (control, tokenizer_pool.messages, batch_manager.messages, engine.messages):
        kinds = kinds_in(module)
        assert not declared.keys() & kinds.keys(), "a kind belongs to one package"
        declared |= kinds

    rows = re.findall(r"^\| `0x([0-9a-f]{4})` \| (\w+) \|", section("Frames"), re.MULTILINE)
    assert {int(number, 16): name for number, name in rows} == declared


def test_the_frame_format_is_as_specified() -> None:
    text = section("Frames")

    assert frames.HEADER.format == "<IHHQ"  # what the table of bytes says
    assert frames.HEADER.size == 16
    assert frames.MAX_PAYLOAD == 1 << 30
    assert f"(now {frames.VERSION})" in text
    assert b"".join(frames.hello())[frames.HEADER.size :] == b"EMBL" + bytes([frames.VERSION, 0, 0, 0])


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = prose((ROOT / page).read_text())
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith(("https://", "http://"))]

    for link in links:
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text()), link


def anchors(text: str) -> set[str]:
    """Headings as links spell them."""
    titles = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", FLAG_PAGES)
def test_flags_that_a_page_names_exist(page: str) -> None:
    assert flags_in((ROOT / page).read_text()) <= known_flags()


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_metrics_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = "\n".join([*re.findall(r"`([^`\n]+)`", text), *(example.code for example in examples(text))])
    metrics = {one.name for one in (*ALL, *LEVELS, *PROCESS_LEVELS)}

    assert set(re.findall(r"^(?:\$ )?make ([a-z]+)", commands, re.MULTILINE)) <= set(targets)
    assert [name for name in re.findall(r"`(embedline_[a-z_]+)`", text) if name not in metrics] == []


def test_a_missing_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nclass A:\n    def f(self): ...\nasync def g(): ...\n")

    assert names_in(tmp_path / "a.py") == {"x", "A", "A.f", "g"}

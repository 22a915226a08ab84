"""Checks the library's source for everything that our TensorRT-LLM engine relies on (contract.json).

The source is read as text and never imported, so this needs neither a GPU nor what the library needs. It finds names
that have moved and arguments that have changed; it can't tell whether what is behind them still does the same.
"""

import ast
import dataclasses
import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.tensorrt_llm.contract.source_tree import Definition, Function, SourceTree
from engine.types import ModelError

PACKAGE = "tensorrt_llm"
_FILE = Path(__file__).with_name("contract.json")
_WIDTH = 36  # characters of names in a report


class Status(enum.StrEnum):
    """The result of checking a clause."""

    KEPT = "kept"
    BROKEN = "broken"  # it is there, but different
    NOT_FOUND = "not found"  # in none of the known places
    SPARED = "spared"  # missing or different, but the engine does without it


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One thing that the engine relies on. Empty fields are not checked. Names are those of the source."""

    modules: tuple[str, ...]  # one of them has it, or imports it within the package
    name: str  # of a class or function
    why: str
    is_optional: bool = False  # the engine checks whether it is there
    method: str = ""
    # of the function or method:
    begins_with: tuple[str, ...] = ()  # its first arguments in order, without self
    takes: tuple[str, ...] = ()  # further named arguments
    takes_any_keyword: bool = False
    is_called: bool = False  # whether it is called, with only the arguments above
    mentions: tuple[str, ...] = ()  # texts in it, or in a constant that it uses
    calls_by_keyword: tuple[str, ...] = ()  # functions that it calls with keyword arguments only
    # of the class:
    metaclass: str = ""
    fields: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What is checked, for people."""
        members = [self.method] if self.method else [*self.fields, *self.attributes]
        return f"{self.name}.{members[0]}" if len(members) == 1 else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A clause and the result of its check."""

    label: str
    status: Status
    where: str  # file and line; "" if nothing was found
    what: str  # what is wrong; "" if nothing is
    why: str  # the engine relies on it


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of all clauses, in order."""

    folder: Path  # contains the package
    version: str  # "" if the source does not say
    findings: tuple[Finding, ...]

    @property
    def is_kept(self) -> bool:
        """Whether everything that the engine needs is there and unchanged."""
        return all(finding.status in (Status.KEPT, Status.SPARED) for finding in self.findings)

    @property
    def summary(self) -> str:
        """A summary in one line."""
        counts = {status: sum(each.status is status for each in self.findings) for status in Status}
        others = ", ".join(f"{count} {status}" for status, count in counts.items() if count and status != Status.KEPT)
        return f"{counts[Status.KEPT]} of {len(self.findings)} clauses kept{', ' if others else ''}{others}"

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "folder": str(self.folder),
            "version": self.version or None,
            "is_kept": self.is_kept,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }

    def text(self) -> str:
        """The report as text: a line for each clause, and the reason below those that fail."""
        lines = [f"{PACKAGE} {self.version or 'of an unknown version'} in {self.folder}"]
        for finding in self.findings:
            found = ": ".join(filter(None, (finding.where, finding.what)))
            lines.append(f"  {finding.status:<10} {finding.label:<{_WIDTH}} {found}")
            if finding.status is not Status.KEPT:
                lines.append(f"  {'':<10} {finding.why}")
        return "\n".join([*lines, f"{self.summary}; read as text, nothing was run"])


def clauses() -> tuple[Clause, ...]:
    """The clauses of contract.json."""
    return tuple(Clause(**{name: _frozen(value) for name, value in one.items()}) for one in _read()["clauses"])


def check(root: Path, asked: Sequence[Clause] | None = None) -> Report:
    """Check a version's source against the contract, or against the clauses in `asked`.

    root: a checkout of the repository, a site-packages folder, a wheel's content, or the package's own folder. Raises
    ModelError if the package is not there.
    """
    folder = _folder(root)
    tree = SourceTree(folder, PACKAGE)
    version = tree.constant(f"{PACKAGE}.version", "__version__") or tree.constant(PACKAGE, "__version__")
    return Report(
        folder=folder,
        version=version if isinstance(version, str) else "",
        findings=tuple(_finding(tree, clause) for clause in (clauses() if asked is None else asked)),
    )


def _read() -> dict[str, Any]:
    value = json.loads(_FILE.read_text(encoding="utf-8"))
    assert isinstance(value, dict)
    return value


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _folder(root: Path) -> Path:
    """The folder that contains the package."""
    root = root.expanduser().absolute()
    for folder in (root, root.parent if root.name == PACKAGE else root):
        if any((folder / PACKAGE).glob("*.py")):
            return folder
    raise ModelError(
        f"{root} has no {PACKAGE} package: name the unpacked repository or wheel, a site-packages folder, or the "
        "package's own folder"
    )


def _finding(tree: SourceTree, clause: Clause) -> Finding:
    found, what = _found(tree, clause)
    if found is not None:
        what = "; ".join(_problems(tree, found, clause))
    status = Status.NOT_FOUND if found is None else Status.BROKEN if what else Status.KEPT
    if clause.is_optional and status is not Status.KEPT:
        status = Status.SPARED
    return Finding(label=clause.label, status=status, where=found.place if found else "", what=what, why=clause.why)


def _found(tree: SourceTree, clause: Clause) -> tuple[Definition | None, str]:
    """What to check, or why there is nothing."""
    owner = next(filter(None, (tree.find(module, clause.name) for module in clause.modules)), None)
    if owner is None:
        there = [module for module in clause.modules if tree.has(module)]
        places = f"not in {' or '.join(there)}" if there else f"there is no module {' or '.join(clause.modules)}"
        return None, places
    if not clause.method:
        return owner, ""
    method = tree.method(owner, clause.method)
    return method, "" if method else f"{clause.name} ({owner.place}) has no method {clause.method}"


def _problems(tree: SourceTree, found: Definition, clause: Clause) -> Iterator[str]:
    node = found.node
    if isinstance(node, Function):
        yield from _problems_of_function(node, clause)
        texts = tree.texts(found) if clause.mentions else ()
        yield from (f"it does not mention {text}" for text in clause.mentions if text not in texts)
        return
    if clause.begins_with or clause.takes:
        yield "it is a class, and no function"
    if clause.metaclass and clause.metaclass not in map(_metaclass, _classes(tree, found)):
        yield f"its metaclass is not {clause.metaclass}"
    yield from _missing("field", clause.fields, tree.fields(found) if clause.fields else ())
    yield from _missing("attribute", clause.attributes, tree.attributes(found) if clause.attributes else ())
    values = tree.constants(found) if clause.values else {}
    for name, value in clause.values.items():
        if values.get(name) != value:
            yield f"{name} is {values.get(name)!r}, not {value!r}" if name in values else f"it has no {name}"


def _problems_of_function(node: Function, clause: Clause) -> Iterator[str]:
    arguments = node.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    bound = 1 if clause.method and not _is_static(node) else 0
    first = tuple(positional[bound : bound + len(clause.begins_with)])
    if first != clause.begins_with:
        yield f"it begins with ({', '.join(first)}), not with ({', '.join(clause.begins_with)})"
    named = {argument.arg for argument in (*arguments.args[bound:], *arguments.kwonlyargs)}
    yield from _missing("argument", clause.takes, named)
    if clause.takes_any_keyword and arguments.kwarg is None:
        yield "it takes no further arguments by name"
    if clause.is_called:
        needed = [name for name in _without_default(arguments)[bound:] if name not in clause.begins_with + clause.takes]
        yield from (f"it needs an argument {name}" for name in needed)
    for called in clause.calls_by_keyword:
        calls = [each for each in ast.walk(node) if isinstance(each, ast.Call) and ast.unparse(each.func) == called]
        if not calls:
            yield f"it does not call {called}"
        elif any(call.args for call in calls):
            yield f"it gives {called} arguments by place"


def _missing(kind: str, wanted: Sequence[str], there: Any) -> Iterator[str]:
    return (f"it has no {kind} {name}" for name in wanted if name not in there)


def _without_default(arguments: ast.arguments) -> list[str]:
    """The arguments without a default, positional ones first."""
    positional = [*arguments.posonlyargs, *arguments.args]
    by_place = positional[: len(positional) - len(arguments.defaults)]
    by_name = [one for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None]
    return [argument.arg for argument in (*by_place, *by_name)]


def _is_static(node: Function) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in node.decorator_list)


def _classes(tree: SourceTree, found: Definition) -> Iterator[ast.ClassDef]:
    return (base.node for base in tree.lineage(found) if isinstance(base.node, ast.ClassDef))


def _metaclass(node: ast.ClassDef) -> str:
    return next((ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "metaclass"), "")

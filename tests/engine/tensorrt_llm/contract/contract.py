"""Checks a tensorrt_llm's source for everything that our engine relies on (contract.json).

`python -m tests.engine.tensorrt_llm.contract.contract FOLDER` checks an unpacked repository or wheel, a site-packages
folder, or the package's own folder, and ends with 1 where something is missing. The source is read as text and never
imported: definitions of names, members and bases of classes. It follows imports within the package and bases that are
written as names. It finds names that have moved and arguments that have changed. It can't tell whether what is behind
them still does the same, and does not see what is made while a program runs, such as attributes set from outside.
"""

import ast
import enum
import itertools
import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PACKAGE = "tensorrt_llm"
_CLAUSES = Path(__file__).with_name("contract.json")
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

    @property
    def is_kept(self) -> bool:
        """Whether the engine can do with it."""
        return self.status in (Status.KEPT, Status.SPARED)

    def __str__(self) -> str:
        found = ": ".join(filter(None, (self.where, self.what)))
        line = f"  {self.status:<10} {self.label:<{_WIDTH}} {found}"
        return line if self.status is Status.KEPT else f"{line}\n  {'':<10} {self.why}"


def clauses() -> list[Clause]:
    """The clauses of contract.json."""
    read = json.loads(_CLAUSES.read_text())
    of_each = json.dumps(read["clauses_of_each_family"])
    of_families = (
        json.loads(of_each.replace("{module}", module).replace("{name}", name))
        for module, name in read["families"].items()
    )
    found = itertools.chain(read["clauses"], *of_families)
    return [Clause(**{name: _frozen(value) for name, value in one.items()}) for one in found]


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def check(root: Path, asked: Sequence[Clause] | None = None) -> list[Finding]:
    """The source in a folder, held against the contract, or against the clauses in `asked`."""
    tree = SourceTree(root.parent if root.name == PACKAGE else root, PACKAGE)
    return [_finding(tree, clause) for clause in (clauses() if asked is None else asked)]


Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Definition:
    """A class or a function."""

    module: str
    file: str  # relative to the folder that contains the package
    node: ast.ClassDef | Function

    @property
    def place(self) -> str:
        """File and line, for people."""
        return f"{self.file}:{self.node.lineno}"


class SourceTree:
    """The modules of one package, each read on first use."""

    def __init__(self, folder: Path, package: str) -> None:
        """folder: contains the package."""
        self._folder = folder
        self._package = package
        self._modules: dict[str, ast.Module | None] = {}

    def has(self, module: str) -> bool:
        """Whether the module has a file that Python can parse."""
        return self._parsed(module) is not None

    def find(self, module: str, name: str) -> Definition | None:
        """The class or function of this name in a module, wherever in the package it is defined."""
        return self._find(module, name, frozenset())

    def method(self, owner: Definition, name: str) -> Definition | None:
        """The method of a class, possibly inherited."""
        for base in self.lineage(owner):
            for statement in _statements(base.node.body):
                if isinstance(statement, Function) and statement.name == name:
                    return Definition(base.module, base.file, statement)
        return None

    def fields(self, owner: Definition) -> set[str]:
        """Annotated names of a class and its bases: the arguments of a dataclass or a pydantic model."""
        return {
            statement.target.id
            for base in self.lineage(owner)
            for statement in _statements(base.node.body)
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        }

    def attributes(self, owner: Definition) -> set[str]:
        """The attributes of instances: fields, methods, and assignments to self."""
        found = self.fields(owner)
        for base in self.lineage(owner):
            statements = list(_statements(base.node.body))
            found |= set(_constants(statements)) | {each.name for each in statements if isinstance(each, Function)}
            found |= {
                node.attr
                for node in ast.walk(base.node)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value)
            }
        return found

    def constants(self, owner: Definition) -> dict[str, object]:
        """Plain values that the class assigns: the members of an enumeration."""
        return _constants(_statements(owner.node.body))

    def texts(self, owner: Definition) -> set[str]:
        """All texts in it, or in constants of its module that it uses."""
        used = {node.id for node in ast.walk(owner.node) if isinstance(node, ast.Name)}
        nodes: list[ast.AST] = [owner.node]
        for statement in _statements(self._body(owner.module)):
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                nodes += [statement for target in targets if isinstance(target, ast.Name) and target.id in used]
        constants = (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Constant))
        return {constant.value for constant in constants if isinstance(constant.value, str)}

    def lineage(self, owner: Definition) -> Iterator[Definition]:
        """The class and its bases in the package, the nearest first."""
        seen: set[tuple[str, str]] = set()
        waiting = [owner]
        while waiting:
            current = waiting.pop(0)
            key = (current.module, current.node.name)
            if key in seen or not isinstance(current.node, ast.ClassDef):
                continue
            seen.add(key)
            yield current
            bases = (self.find(current.module, name) for name in map(_base_name, current.node.bases) if name)
            waiting = [*filter(None, bases), *waiting]

    def _find(self, module: str, name: str, seen: frozenset[tuple[str, str]]) -> Definition | None:
        """seen: modules that have been searched, since modules can import from each other."""
        if (module, name) in seen:
            return None
        for statement in _statements(self._body(module)):
            if isinstance(statement, ast.ClassDef | Function) and statement.name == name:
                return Definition(module, self._file(module).relative_to(self._folder).as_posix(), statement)
            for other, its_name in self._elsewhere(module, name, statement):
                found = self._find(other, its_name, seen | {(module, name)})
                if found is not None:
                    return found
        return None

    def _elsewhere(self, module: str, name: str, statement: ast.stmt) -> Iterator[tuple[str, str]]:
        """The module that a statement imports the name from, and its name there."""
        match statement:
            case ast.ImportFrom(names=aliases):
                source = self._source(module, statement)
                for alias in aliases:
                    if source is not None and (alias.asname or alias.name) in (name, "*"):
                        yield source, name if alias.name == "*" else alias.name
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Name(id=other)) if target == name:
                yield module, other

    def _source(self, module: str, statement: ast.ImportFrom) -> str | None:
        """The module that is imported from; None if it is not in the package."""
        parts: list[str] = []
        if statement.level:
            parts = module.split(".")
            leaves_out = statement.level - self._file(module).name.startswith("__init__.")
            parts = parts[: len(parts) - leaves_out]
        name = ".".join([*parts, *([statement.module] if statement.module else [])])
        return name if name.partition(".")[0] == self._package else None

    def _body(self, module: str) -> list[ast.stmt]:
        parsed = self._parsed(module)
        return [] if parsed is None else parsed.body

    def _parsed(self, module: str) -> ast.Module | None:
        if module not in self._modules:
            self._modules[module] = _parsed(self._file(module))
        return self._modules[module]

    def _file(self, module: str) -> Path:
        path = self._folder.joinpath(*module.split("."))
        return path / "__init__.py" if path.is_dir() else path.with_name(f"{path.name}.py")


def _parsed(file: Path) -> ast.Module | None:
    """The parsed file; None if it is missing or this Python can't parse it."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about the package's source
            return ast.parse(file.read_bytes(), file.name)
    except (OSError, SyntaxError, ValueError):
        return None


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The definitions of a module or class, including both branches of an `if` or `try`."""
    for statement in body:
        yield statement
        match statement:
            case ast.If(body=inner, orelse=other):
                yield from _statements([*inner, *other])
            case ast.Try(body=inner, handlers=handlers, orelse=other, finalbody=last):
                yield from _statements([*inner, *other, *(each for one in handlers for each in one.body), *last])
            case ast.With(body=inner):
                yield from _statements(inner)


def _constants(statements: Iterable[ast.stmt]) -> dict[str, object]:
    """Names with their assigned values; None for values that are not plain."""
    found: dict[str, object] = {}
    for statement in statements:
        if isinstance(statement, ast.Assign):
            value = statement.value.value if isinstance(statement.value, ast.Constant) else None
            found |= {target.id: value for target in statement.targets if isinstance(target, ast.Name)}
    return found


def _base_name(node: ast.expr) -> str:
    """The name in `Base` and `Base[Config]`; "" for other forms."""
    match node:
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)):
            return name
    return ""


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


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


def main() -> None:
    """Print a line for each clause, and the reason below those that fail."""
    found = check(Path(sys.argv[1]).absolute())
    kept = sum(finding.is_kept for finding in found)
    print(*found, f"{kept} of {len(found)} clauses kept; read as text, nothing was run", sep="\n")
    sys.exit(kept < len(found))


if __name__ == "__main__":
    main()

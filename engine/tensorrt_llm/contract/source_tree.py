"""Reads a package's source as text: definitions of names, members and bases of classes. Imports nothing of it.

It follows imports within the package and bases that are written as names. What is made while a program runs, such as
attributes set from outside, it does not see.
"""

import ast
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
_MAX_BYTES = 16 << 20  # of a file; the largest one of tensorrt_llm is below one MiB


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

    def constant(self, module: str, name: str) -> object:
        """The plain value that a module assigns to a name, or None."""
        return _constants(_statements(self._body(module))).get(name)

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
        if not file.is_file() or file.stat().st_size > _MAX_BYTES:  # a pipe would never end
            return None
        with warnings.catch_warnings(action="ignore"):  # about the package's source
            return ast.parse(file.read_bytes(), file.name)
    except (
        OSError,
        SyntaxError,
        ValueError,
        RecursionError,
        MemoryError,
    ):  # or nested too deeply
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

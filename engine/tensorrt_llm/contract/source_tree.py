"""A package's source as text: where a name is defined, what a class has, what it inherits. Imports nothing of it.

It follows imports within the package and bases that are written as names. What is made while a program runs, such as
attributes set from outside, it does not see.
"""

import ast
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
_MAX_BYTES = 16 << 20  # of a file; the largest one of tensorrt_llm has less than one MiB


@dataclass(frozen=True, slots=True)
class Definition:
    """A class or a function."""

    module: str
    file: str  # relative to the folder that has the package in it
    node: ast.ClassDef | Function

    @property
    def place(self) -> str:
        """For people: file and line."""
        return f"{self.file}:{self.node.lineno}"


class SourceTree:
    """The modules of one package, each read when it is first asked for."""

    def __init__(self, folder: Path, package: str) -> None:
        """`folder` has the package in it."""
        self._folder = folder
        self._package = package
        self._modules: dict[str, ast.Module | None] = {}

    def has(self, module: str) -> bool:
        """Whether there is a file of this module that Python can read."""
        return self._parsed(module) is not None

    def constant(self, module: str, name: str) -> object:
        """What a module gives a name as a plain value; None where it does not."""
        return _constants(_statements(self._body(module))).get(name)

    def find(self, module: str, name: str) -> Definition | None:
        """The class or function that a module has by this name, wherever in the package it is written."""
        return self._find(module, name, frozenset())

    def method(self, owner: Definition, name: str) -> Definition | None:
        """Also an inherited one."""
        for base in self.lineage(owner):
            for statement in _statements(base.node.body):
                if isinstance(statement, Function) and statement.name == name:
                    return Definition(base.module, base.file, statement)
        return None

    def fields(self, owner: Definition) -> set[str]:
        """Names with a type in the class or above it: the arguments of a dataclass or a pydantic model."""
        return {
            statement.target.id
            for base in self.lineage(owner)
            for statement in _statements(base.node.body)
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        }

    def attributes(self, owner: Definition) -> set[str]:
        """What instances have: fields, methods, and what a method gives to self."""
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
        """Plain values that the class itself gives to names: the members of an enumeration."""
        return _constants(_statements(owner.node.body))

    def texts(self, owner: Definition) -> set[str]:
        """All texts that stand in it, or in what its module gives to a name that it uses."""
        used = {node.id for node in ast.walk(owner.node) if isinstance(node, ast.Name)}
        nodes: list[ast.AST] = [owner.node]
        for statement in _statements(self._body(owner.module)):
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                nodes += [statement for target in targets if isinstance(target, ast.Name) and target.id in used]
        constants = (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Constant))
        return {constant.value for constant in constants if isinstance(constant.value, str)}

    def lineage(self, owner: Definition) -> Iterator[Definition]:
        """The class, and those of its bases that are in the package; the nearest first."""
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
        """`seen`: modules that import from each other are asked once."""
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
        """Where a statement takes the name from, and what it is called there."""
        match statement:
            case ast.ImportFrom(names=aliases):
                source = self._source(module, statement)
                for alias in aliases:
                    if source is not None and (alias.asname or alias.name) in (name, "*"):
                        yield source, name if alias.name == "*" else alias.name
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Name(id=other)) if target == name:
                yield module, other

    def _source(self, module: str, statement: ast.ImportFrom) -> str | None:
        """The module that is imported from; None where it is not the package's."""
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
    """None where there is no such file, or one for another Python than this."""
    try:
        if not file.is_file() or file.stat().st_size > _MAX_BYTES:  # a pipe would never end
            return None
        with warnings.catch_warnings(action="ignore"):  # of what somebody else has written
            return ast.parse(file.read_bytes(), file.name)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # the last of what is nested too deeply
        return None


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a module or class, also under an `if` or `try`: both versions of a name are there."""
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
    """Names that are given a value; what is no plain one is None."""
    found: dict[str, object] = {}
    for statement in statements:
        if isinstance(statement, ast.Assign):
            value = statement.value.value if isinstance(statement.value, ast.Constant) else None
            found |= {target.id: value for target in statement.targets if isinstance(target, ast.Name)}
    return found


def _base_name(node: ast.expr) -> str:
    """Of `Base` and `Base[Config]`; "" for what is written otherwise."""
    match node:
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)):
            return name
    return ""


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"

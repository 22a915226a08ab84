"""What the structure tests read: the source files of the six packages, their syntax trees and their imports."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("wire", "engine", "tokenizer_pool", "batch_manager", "server", "embedline")


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file. `path` is relative to the repository's root."""

    path: Path
    text: str

    @property
    def package(self) -> str:
        return self.path.parts[0]

    @property
    def module(self) -> str:
        """The dotted name to import it by."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    def imports(self) -> tuple[str, ...]:
        """What `imported_names` finds in it. Kept, for many tests ask; keeping trees would take too much memory."""
        return _imports(self)


@cache
def _imports(source: Source) -> tuple[str, ...]:
    return tuple(imported_names(source.tree()))


def sources(*packages: str) -> list[Source]:
    """All files of these packages (of all six if none is named), in a fixed order."""
    files = [file for package in packages or PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return [Source(file.relative_to(ROOT), file.read_text()) for file in files]


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Dotted names that this code imports, wherever in the file, those given to `import_module` as text included.

    `from a import b` counts as a.b, for b may be a module; a relative import begins with a dot.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                yield from (f"{'.' * level}{module or ''}.{alias.name}" for alias in names)
            case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]):
                if dotted(func).rpartition(".")[2] in ("import_module", "__import__"):
                    yield name


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a chain of attributes; of anything else only the part after it, as in `().close`."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{dotted(value)}.{attr}"
    return ""


def is_within(name: str, modules: tuple[str, ...]) -> bool:
    """Whether a dotted name is one of these modules or lies in one."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)

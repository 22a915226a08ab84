"""Sums of the code that entries in the cache depend on: of the source as it is, and as cache_formats.json has them. As
a program it records them anew.

A key counts the format of its kind of entry, a number, and not our code. The sums say when to think about that number.
"""

import ast
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.structure.sources import PACKAGES, ROOT, Source, is_within

RECORDED = ROOT / "tests" / "structure" / "cache_formats.json"
COMMAND = ".venv/bin/python -m tests.structure.cache_formats"
_ANY_FORMAT = "FORMAT"  # how the names of such numbers end

_MODEL = ("model/**/*.py", "rows/*.py", "selftest/*.py", "store/tensor_file.py")
_CONVERSION = (
    *_MODEL,
    "cpu/**/*.py",
    "machine/host.py",  # how large int8 weights may be
    *(f"transformers/{name}.py" for name in ("attention", "configuration", "loading", "reference", "visibility")),
    "transformers/models/*.py",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of entry."""

    numbered_in: str  # the file with its format
    code: tuple[str, ...]  # patterns of the files within engine/ that decide what is in an entry
    constant: str = "_FORMAT"


KINDS = {
    "compiled model": Kind("engine/cpu/loading.py", _CONVERSION),
    "compiled model for other machines": Kind("engine/cpu/portable.py", _CONVERSION),
    "quantized model": Kind(
        "engine/fused/quantization/cache.py", (*_MODEL, "fused/**/*.py", "transformers/configuration.py")
    ),
    "finding of a self-test": Kind(
        "engine/transformers/selftest.py", (*_MODEL, "machine/varlen.py", "transformers/**/*.py")
    ),
    "block-FP8 copy": Kind(
        "engine/tensorrt_llm/quantize/cached.py",
        (
            "store/tensor_file.py",
            *(f"tensorrt_llm/quantize/{name}.py" for name in ("job", "plan")),
        ),
    ),
    "merged copy": Kind(
        "server/features/adapters/start.py",
        ("model/lora.py", *(f"convert/{name}.py" for name in ("adapted", "checkpoint_names", "merging"))),
    ),
    "converted copy": Kind(
        "server/features/convert/start.py",
        tuple(f"convert/{name}.py" for name in ("process", "conversion", "pickle_to_safetensors", "plan")),
    ),
}


def found(kind: Kind) -> dict[str, Any]:
    """The format and the sum of a kind of entry, as the source is now."""
    return {"format": _format_of(kind), "sum": sum_of(_files(kind.code))}


def recorded() -> dict[str, dict[str, Any]]:
    """The same of all kinds, as they were recorded."""
    return dict(json.loads(RECORDED.read_text()))


def sum_of(files: list[Source]) -> str:
    """A sum over all statements of these files that stand in no other one. It is the same however they are ordered and
    divided into files; imports, docstrings, comments and formats do not count."""
    sums = {_digest(repr(_shape(statement))) for file in files for statement in _Bare().visit(file.tree()).body}
    return _digest("".join(sorted(sums)))[:16]


def _files(patterns: tuple[str, ...]) -> list[Source]:
    by_pattern = {pattern: sorted((ROOT / "engine").glob(pattern)) for pattern in patterns}
    assert all(by_pattern.values()), [pattern for pattern, files in by_pattern.items() if not files]
    paths = {path for files in by_pattern.values() for path in files}
    return [Source(path.relative_to(ROOT), path.read_text()) for path in sorted(paths)]


def _format_of(kind: Kind) -> int:
    tree = ast.parse((ROOT / kind.numbered_in).read_text())
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    (value,) = [node.value for node in assigned if ast.unparse(node.targets[0]) == kind.constant]
    number = ast.literal_eval(value)
    assert type(number) is int
    return number


class _Bare(ast.NodeTransformer):
    """Leaves out what does not count. What is imported from our own packages has its last name alone, so that it does
    not matter in which file it is, or by which name it is imported; what comes from elsewhere has its whole name."""

    def __init__(self) -> None:
        self._imported: dict[str, str] = {}

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self._imported = dict(_imports(node))
        self.generic_visit(node)
        return node

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        self.generic_visit(node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int())) if name.endswith(_ANY_FORMAT):
                return None
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        name = self._imported.get(node.id, node.id)
        return ast.Name(name.rpartition(".")[2] if is_within(name, PACKAGES) else name, node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and _is_our_module(self._imported.get(node.value.id, "")):
            return ast.Name(node.attr, node.ctx)
        self.generic_visit(node)
        return node


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each name that the file imports something by, and the dotted name of that."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((alias.asname, alias.name) for alias in names if alias.asname)
            case ast.ImportFrom(module=str(module), names=names):
                yield from ((alias.asname or alias.name, f"{module}.{alias.name}") for alias in names)


def _is_our_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return is_within(name, PACKAGES) and (path.with_suffix(".py").is_file() or path.is_dir())


def _shape(node: Any) -> Any:
    """A syntax tree as tuples and lists, without fields that are empty: newer versions of Python have more of these."""
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value is not None and value != [])
        return (type(node).__name__, *((name, _shape(value)) for name, value in fields))
    return [_shape(each) for each in node] if isinstance(node, list) else node


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def main() -> None:
    now = {name: found(kind) for name, kind in KINDS.items()}
    RECORDED.write_text(json.dumps(now, indent=1) + "\n")


if __name__ == "__main__":
    main()

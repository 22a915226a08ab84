"""Measures how large the house is: code, files, importers, and what one text passes.

`python -m tests.structure.budget` prints the measures of this checkout beside their limits, which test_budget.py holds;
`--list` also prints what is counted.
"""

import ast
import sys
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path

from tests.structure.on_the_way import FRONTEND, imported, on_the_way, trace
from tests.structure.sources import PACKAGES, ROOT, Source, dotted, is_within, sources

# What the core does without: features, by their parts that stand in the core's folders as well.
FEATURES = (
    *("server.features", "embedline.pipelines", "embedline.ray_serve"),
    "embedline.bench",
)
# Engines that no computer of the core's users needs, and the tools that make model folders.
OTHER_GUESTS = ("engine.fused", "engine.tensorrt_llm", "engine.convert")
GUESTS = (*FEATURES, *OTHER_GUESTS)
LIST_OF_FEATURES = "server.features.table"  # which the core asks
# Modules that are a list of others: what they import is there because of its row, and has no second importer.
REGISTRIES = {
    "server.dialects.table": "dialects",
    LIST_OF_FEATURES: "features",
    "server.features.grpc.methods": "methods of gRPC",
    "embedline.__main__": "the command line, behind the launcher",
    "server.cli": "the program of all commands",
    "server.program": "commands",
    **{
        f"server.features.{name}": "the work of commands, loaded when one runs"
        for name in ("backfill.command", "bench", "convert.command", "quantize", "ray.command", "verify.command")
    },
    "server.features.backfill.sinks": "databases",
    "engine.model.known_code.table": "known code",
    "engine.transformers.heads": "heads",
    "engine.fused.adapters": "architectures",
    "engine.fused.kernels": "kernels",
}
# Modules that load one of several by a flag, and more besides: those of them are named that have this folder.
CHOOSERS = {"server.features.jobs.main": "server.features.jobs.store"}
CORE, TESTS = "core", "tests"
WINGS = (*PACKAGES, CORE)
# Tokens that stand for how code is laid out, and no code.
_LAYOUT = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)
# From Python 3.12 on an f-string is many tokens; it is counted as one, as before.
_BEGINS = getattr(tokenize, "FSTRING_START", None)
_ENDS = getattr(tokenize, "FSTRING_END", None)


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure, and what was counted for it where that has names."""

    name: str
    value: int
    counted: tuple[str, ...] = ()


def measures() -> list[Measure]:
    """All measures of this checkout for which nothing must run."""
    product = tuple(sources())
    named = files_of(product)
    singles, edges = single_importers(product), feature_imports(product)
    longest = max(product, key=num_lines)
    return [
        *(measure for wing in WINGS for measure in sizes(wing, of_wing(wing))),
        Measure("lines of the tests", sum(map(num_lines, of_wing(TESTS)))),
        Measure("files of the product", len(named)),
        Measure("folders of the product", len({source.path.parent for source in product})),
        Measure("files with one importer that no registry names", len(singles), singles),
        Measure("imports of features by the core", len(edges), edges),
        Measure("lines of the longest file", num_lines(longest), (str(longest.path),)),
        fullest("entries of the fullest folder", {source.path.parent for source in product}),
        fullest("entries of the fullest folder of tests", {source.path.parent for source in of_wing(TESTS)}),
    ]


def measures_of_running(folder: Path) -> list[Measure]:
    """What a server shows that starts and computes texts. The folder is empty."""
    ran = trace(folder)
    passed, of_frontend = on_the_way(ran), imported(ran, FRONTEND)
    everywhere = {file for process in ran for file in imported(ran, process) if file.startswith("server/features/")}
    of_features = sorted(file for file in everywhere if not file.endswith(("/feature.py", "/table.py")))
    return [
        Measure("files on the way of one text", len(passed), tuple(passed)),
        Measure("files that a frontend imports", len(of_frontend), tuple(of_frontend)),
        Measure("files of features that are off, in any process", len(of_features), tuple(of_features)),
    ]


def of_wing(wing: str) -> list[Source]:
    """The files of a folder at the root, or of the core."""
    if wing == CORE:
        return [source for source in sources() if not is_within(source.module, GUESTS)]
    return sources(wing)


def num_lines(source: Source) -> int:
    """As `wc -l` counts them."""
    return source.text.count("\n")


def files_of(product: Iterable[Source]) -> list[Source]:
    """Those that hold code, and do not only make a folder a package."""
    return [source for source in product if source.path.name != "__init__.py"]


def sizes(wing: str, files: Iterable[Source]) -> Iterator[Measure]:
    """Lines of code and tokens."""
    lines, tokens = zip(*(code_size(source.text) for source in files), strict=True)
    yield Measure(f"{wing}: lines of code", sum(lines))
    yield Measure(f"{wing}: tokens", sum(tokens))


@cache
def code_size(text: str) -> tuple[int, int]:
    """Lines and tokens of code: without docstrings, comments and empty lines."""
    docstrings = set(docstring_places(ast.parse(text)))
    lines: set[int] = set()
    number = depth = 0
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type in _LAYOUT or token.start in docstrings:
            continue
        lines.update(range(token.start[0], token.end[0] + 1))
        number += depth == 0
        depth += (token.type == _BEGINS) - (token.type == _ENDS)
    return len(lines), number


def docstring_places(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Line and column of each docstring's start."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body[:1]:
                case [ast.Expr(value=ast.Constant(value=str()) as docstring)]:
                    yield docstring.lineno, docstring.col_offset


def fullest(name: str, folders: Iterable[Path]) -> Measure:
    """How many files and folders the folder with most of them has."""
    entries = {folder: sum(one.name != "__pycache__" for one in (ROOT / folder).iterdir()) for folder in folders}
    folder = max(entries, key=lambda one: entries[one])
    return Measure(name, entries[folder], (str(folder),))


def single_importers(product: Iterable[Source]) -> tuple[str, ...]:
    """Files that one other file imports, and that no registry names: `file <- importer`.

    A registry names what it imports, and what stands as a module's name in a string: engines, modules of processes.
    A program is an entry point, which whoever starts it names.
    """
    files = {source.module: source for source in product}
    importers: dict[str, set[str]] = defaultdict(set)
    for importer, module in edges_of(files):
        importers[module].add(importer)
    in_strings = {name for source in files.values() for name in strings_of(source) if name in files}
    alone = {
        module: next(iter(those))
        for module, those in importers.items()
        if len(those) == 1 and files[module].path.name != "__init__.py"
    }
    return tuple(
        f"{module} <- {importer}"
        for module, importer in sorted(alone.items())
        if importer not in REGISTRIES
        and module.rpartition(".")[0] != CHOOSERS.get(importer)
        and module not in in_strings
        and '\nif __name__ == "__main__":\n' not in files[module].text
    )


def feature_imports(product: Iterable[Source], guests: tuple[str, ...] = GUESTS) -> tuple[str, ...]:
    """Pairs of a file of the core and a module of a feature that a statement of it imports, wherever it stands:
    in a function or for type checkers alone as well."""
    edges = sorted(edges_of({source.module: source for source in product}))
    inwards = [
        (core, guest)
        for core, guest in edges
        if is_within(guest, guests) and not is_within(core, guests) and guest != LIST_OF_FEATURES
    ]
    return tuple(f"{core} -> {guest}" for core, guest in inwards)


def edges_of(files: Mapping[str, Source]) -> set[tuple[str, str]]:
    """Which of these modules imports which other one."""
    edges = set()
    for source in files.values():
        for name in source.imports():
            module = name
            while module and module not in files:
                module = module.rpartition(".")[0]
            if module and module != source.module:
                edges.add((source.module, module))
    return edges


@cache
def strings_of(source: Source) -> tuple[str, ...]:
    """Strings that may be the name of a module, or of something in one: `package.module:name`.

    Not those in calls of importlib, which are counted as imports.
    """
    tree = source.tree()
    imported = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and dotted(node.func).endswith("import_module")
        for argument in node.args
    }
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in imported)
    return tuple(node.value.partition(":")[0] for node in constants if isinstance(node.value, str))


def over(found: Iterable[Measure], limits: Mapping[str, int]) -> list[str]:
    """What grew beyond its limit, in words. Raises KeyError for a measure without one."""
    return [
        f"{measure.name}: {measure.value:,}, {measure.value - limits[measure.name]:,} above the limit of "
        f"{limits[measure.name]:,}. Make it smaller, or raise the limit in tests/structure/test_budget.py in the same "
        f"commit and give the reason in its message. Counted: {', '.join(measure.counted) or 'see the command'}"
        for measure in found
        if measure.value > limits[measure.name]
    ]


def main() -> None:
    """Print the measures beside their limits."""
    from tests.structure.test_budget import LIMITS, LIMITS_OF_RUNNING

    with tempfile.TemporaryDirectory() as folder:
        found = [*measures(), *measures_of_running(Path(folder))]
    for measure in found:
        limit = {**LIMITS, **LIMITS_OF_RUNNING}.get(measure.name, 0)
        print(f"{measure.name:52}{measure.value:>9,}  of {limit:>9,}")
        if "--list" in sys.argv:
            print(*(f"    {one}\n" for one in measure.counted), sep="", end="")
    lines = {wing: sum(map(num_lines, of_wing(wing))) for wing in WINGS}
    for name, number in {**lines, "product": sum(lines[package] for package in PACKAGES)}.items():
        print(f"{name + ': lines as `wc -l` counts them':52}{number:>9,}")


if __name__ == "__main__":
    main()

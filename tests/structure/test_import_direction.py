"""Imports between the packages go one way: server on top, wire at the bottom, embedline apart."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.features.table import FEATURES
from server.settings.flag import flags_of
from tests.structure.sources import PACKAGES, Source, is_within, sources

# Of our own, each package may import these and itself.
ALLOWED = {
    "wire": (),
    "engine": ("wire",),
    "tokenizer_pool": ("wire",),
    "batch_manager": ("wire", "engine.types", "engine.messages"),
    "server": ("wire", "engine", "tokenizer_pool", "batch_manager", "embedline"),
    "embedline": (),
}
LAUNCHERS = {
    "embedline.__main__": ("server.cli",),
    "embedline.ray_serve": ("server.features.ray.serving", "server.features.ray.settings"),
}
TOOLS = ("engine.convert",)
ENGINES = ("engine.cpu", "engine.fake", "engine.fused", "engine.static", "engine.tensorrt_llm", "engine.transformers")
# Finds a model's files as a conversion does.
IMPORTS_A_TOOL = {"engine/tensorrt_llm/quantize/plan.py"}
# Inside server, each layer may import those after it, and all may import the list of features. `settings` and `metrics`
# do not know each other.
LAYERS = (
    "cli",
    "program",
    "features",
    "commands",
    "supervisor",
    "frontend",
    "http",
    "dialects",
    "requests",
    "settings",
    "metrics",
    "feature",
)
TABLE = "server.features.table"


def wrong_imports(source: Source) -> list[str]:
    """What this file imports against the direction."""
    allowed = (source.package, *ALLOWED[source.package])
    allowed = (*allowed, *LAUNCHERS.get(source.module, ()))
    names = source.imports()
    ours = [name for name in names if name.startswith(".") or name.partition(".")[0] in PACKAGES]
    return [name for name in ours if not is_within(name, allowed)]


@pytest.mark.holds("Imports go one way")
def test_no_import_goes_against_the_direction() -> None:
    assert {str(source.path): found for source in sources() if (found := wrong_imports(source))} == {}


def wrong_imports_inside_engine(source: Source) -> list[str]:
    """Tools know no engine, and nothing in engine/ knows a tool."""
    forbidden = ENGINES if is_within(source.module, TOOLS) else TOOLS
    return [name for name in source.imports() if is_within(name, forbidden)]


@pytest.mark.holds("Imports go one way")
def test_tools_and_engines_do_not_import_each_other() -> None:
    assert {str(source.path) for source in sources("engine") if wrong_imports_inside_engine(source)} == IMPORTS_A_TOOL


@pytest.mark.parametrize(
    ("path", "text", "wrong"),
    [
        ("engine/convert/a/b.py", "from engine.fused import loading", "engine.fused.loading"),
        ("engine/convert/a/b.py", "from engine import fake", "engine.fake"),
        ("engine/fused/a.py", "def f():\n    from engine.convert.a import b", "engine.convert.a.b"),
        ("engine/worker.py", "import engine.convert", "engine.convert"),
    ],
)
def test_a_planted_import_of_a_tool_is_found(path: str, text: str, wrong: str) -> None:
    assert wrong_imports_inside_engine(Source(Path(path), text)) == [wrong]


def wrong_layers(source: Source) -> list[str]:
    """What this file of server imports from a layer above its own."""
    own = source.module.split(".")[1] if "." in source.module else ""
    if own not in LAYERS:
        return [f"{source.module} is in no layer"] if own else []
    below = LAYERS[LAYERS.index(own) + 1 :] if own != "settings" else ()
    allowed = (*(f"server.{layer}" for layer in (own, *below, "feature")), TABLE)
    return [name for name in source.imports() if name.startswith("server") and not is_within(name, allowed)]


@pytest.mark.holds("Imports go one way")
def test_imports_inside_server_go_one_way() -> None:
    found = {str(source.path): wrong_layers(source) for source in sources("server")}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("path", "text", "wrong"),
    [
        ("server/requests/a.py", "from server.http.body import App", "server.http.body.App"),
        ("server/dialects/tei/a.py", "from server import http", "server.http"),
        ("server/http/a.py", "import server.frontend.main", "server.frontend.main"),
        ("server/supervisor/a.py", "from server.commands.inspect import task", "server.commands.inspect.task"),
        ("server/settings/a.py", "from server.metrics.tei import TEI", "server.metrics.tei.TEI"),
        ("server/metrics/a.py", "from server.requests.errors import ERRORS", "server.requests.errors.ERRORS"),
        ("server/http/a.py", "from server.features import jobs", "server.features.jobs"),
        ("server/http/a.py", "from server.features.jobs.feature import JOBS", "server.features.jobs.feature.JOBS"),
        ("server/other/a.py", "", "server.other.a is in no layer"),
    ],
)
def test_a_planted_import_between_layers_is_found(path: str, text: str, wrong: str) -> None:
    assert wrong_layers(Source(Path(path), text)) == [wrong]


def features_in(source: Source) -> list[str]:
    """What this file of the core imports of a feature. Only the list may, and only the modules that make a Feature."""
    names = [
        name for name in source.imports() if is_within(name, ("server.features",)) and not is_within(name, (TABLE,))
    ]
    return [name for name in names if source.module != TABLE or name.split(".")[3:4] != ["feature"]]


@pytest.mark.holds("Imports go one way")
def test_the_core_imports_no_feature() -> None:
    of_features = ("server.features", *LAUNCHERS)
    core = [source for source in sources() if source.module == TABLE or not is_within(source.module, of_features)]
    assert {str(source.path) for source in core if features_in(source)} == set()


def names_of_features(source: Source) -> list[str]:
    """Texts in this file that name a feature, its flags, or what lies in its folder. Docstrings are not looked at."""
    own = {flag.name for one in FEATURES if one.flags is not None for flag in flags_of(one.flags)}
    words = own | {one.name for one in FEATURES if one.flags is not None}
    return [text for text in texts_of(source) if text in words or "server.features." in text]


def texts_of(source: Source) -> Iterator[str]:
    tree = source.tree()
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


@pytest.mark.holds("Imports go one way")
def test_the_core_names_no_feature() -> None:
    core = [source for source in sources("server") if not is_within(source.module, ("server.features",))]
    found = {str(source.path) for source in core if names_of_features(source)}
    assert found == set()


@pytest.mark.parametrize(
    ("path", "text", "is_wrong"),
    [
        ("server/http/a.py", "def f():\n    from server.features.jobs import rpc", True),
        ("engine/a.py", "import_module('server.features.grpc.server')", True),
        ("server/http/a.py", "from server.features.table import FEATURES", False),
        ("server/features/table.py", "from server.features.jobs.feature import JOBS", False),
        ("server/features/table.py", "from server.features.jobs.rpc import JobsClient", True),
    ],
)
def test_a_planted_import_of_a_feature_is_found(path: str, text: str, is_wrong: bool) -> None:
    assert bool(features_in(Source(Path(path), text))) == is_wrong


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("settings.of('jobs')", True),
        ("hasattr(settings, 'grpc_port')", True),
        ("import_module(f'server.features.{name}.main')", True),
        ("PLAN = 'server.features.jobs.main:run'", True),
        ("def f():\n    'Says jobs.'\n    return 'some jobs wait'", False),
    ],
)
def test_a_planted_name_of_a_feature_is_found(text: str, is_found: bool) -> None:
    assert bool(names_of_features(Source(Path("server/http/a.py"), text))) == is_found


def test_every_package_has_files() -> None:
    assert {source.package for source in sources()} == set(PACKAGES)


@pytest.mark.parametrize(
    ("path", "text", "wrong"),
    [
        ("wire/a.py", "import engine.types", "engine.types"),
        ("wire/a.py", "def f():\n    from server import cli", "server.cli"),
        ("engine/a.py", "from batch_manager.messages import Submit", "batch_manager.messages.Submit"),
        ("engine/a.py", "from .types import Batch", ".types.Batch"),
        ("engine/transformers/a.py", "from importlib import import_module\nimport_module('server.cli')", "server.cli"),
        ("tokenizer_pool/a.py", "from engine.types import Batch", "engine.types.Batch"),
        ("batch_manager/a.py", "from engine.worker import main", "engine.worker.main"),
        ("batch_manager/a.py", "from engine import worker", "engine.worker"),
        ("batch_manager/a.py", "import engine", "engine"),
        ("batch_manager/a.py", "import engine.types_of_other_kind", "engine.types_of_other_kind"),
        ("embedline/a.py", "from server.cli import main", "server.cli.main"),
        ("embedline/__main__.py", "from server.flags import Flags", "server.flags.Flags"),
        ("server/a.py", "import engine\nfrom . import cli", "..cli"),
    ],
)
def test_a_planted_import_is_found(path: str, text: str, wrong: str) -> None:
    assert wrong_imports(Source(Path(path), text)) == [wrong]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "batch_manager/a.py",
            "from engine import messages, types\nfrom engine.types import Batch\nimport wire.frames",
        ),
        ("engine/transformers/a.py", "import torch\nfrom engine.types import Batch\nimport transformers"),
        ("embedline/__main__.py", "from server.cli import main as run"),
        ("server/a.py", "import engine.worker, tokenizer_pool.worker, batch_manager.messages, wire.page"),
    ],
)
def test_imports_along_the_direction_are_left_alone(path: str, text: str) -> None:
    assert wrong_imports(Source(Path(path), text)) == []

"""Imports between the packages go one way: server on top, wire at the bottom, embedline apart."""

from pathlib import Path

import pytest

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
TOOLS = ("engine.tools",)
ENGINES = ("engine.cpu", "engine.fake", "engine.fused", "engine.static", "engine.tensorrt_llm", "engine.transformers")
# Makes the FP8 copy of a model before its engine is loaded.
IMPORTS_A_TOOL = {"engine/fp8_copy.py"}
# Inside server, each layer may import those after it. `settings` and `metrics` do not know each other.
LAYERS = (
    "cli",
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
        ("engine/tools/a/b.py", "from engine.fused import loading", "engine.fused.loading"),
        ("engine/tools/a/b.py", "from engine import fake", "engine.fake"),
        ("engine/fused/a.py", "def f():\n    from engine.tools.a import b", "engine.tools.a.b"),
        ("engine/worker.py", "import engine.tools", "engine.tools"),
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
    # what the core still imports of features is counted by the budget
    allowed = tuple(f"server.{layer}" for layer in (own, *below, "features", "feature"))
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
        ("server/other/a.py", "", "server.other.a is in no layer"),
    ],
)
def test_a_planted_import_between_layers_is_found(path: str, text: str, wrong: str) -> None:
    assert wrong_layers(Source(Path(path), text)) == [wrong]


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

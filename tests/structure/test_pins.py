"""Pinned versions agree: those of constraints.txt, the Makefile, pyproject.toml and the public build of torch."""

import platform
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.structure import torch_requirements
from tests.structure.sources import ROOT

# What only builds of torch for GPUs require; their own requirements pin it.
OF_CUDA = re.compile("nvidia-|cuda-")
INSTALLED_BY_MAKE = ("", "frontend", "server", "cl100k", "test", "bench")


def constraints() -> dict[str, str]:
    """The exact versions, by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pins}


def requirements() -> dict[str, list[Requirement]]:
    """What pyproject.toml requires, by extra; the base's extra is the empty one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = project["optional-dependencies"] | {"": project["dependencies"]}
    return {extra: [Requirement(line) for line in lines] for extra, lines in lists.items()}


def broken(required: list[Requirement]) -> list[str]:
    """Those of the requirements that the exact versions don't fulfil."""
    versions = constraints()
    pairs = [(line, versions.get(canonicalize_name(line.name))) for line in required]
    return [f"{line}, but {version}" for line, version in pairs if version and not line.specifier.contains(version)]


def test_the_ranges_admit_what_make_installs() -> None:
    assert broken([line for lines in requirements().values() for line in lines]) == []


def test_the_public_torch_admits_what_make_installs() -> None:
    required = [Requirement(line) for line in torch_requirements.listed()]
    assert broken(required) == []
    names = {canonicalize_name(line.name) for line in required}
    assert {name for name in names if not OF_CUDA.match(name)} <= set(constraints())


def test_what_make_installs_is_pinned() -> None:
    names = {canonicalize_name(line.name) for extra in INSTALLED_BY_MAKE for line in requirements()[extra]}
    assert names - {"embedline"} <= set(constraints())


def test_a_build_of_torch_without_cuda_fits_too() -> None:
    versions = constraints()
    assert [name for name in versions if OF_CUDA.match(name)] == []
    assert [version for version in versions.values() if "+" in version] == []


def test_one_torch_is_named_everywhere() -> None:
    torch = torch_requirements.pinned_torch()
    assert constraints()["torch"] == torch
    assert f"torch {torch} " in torch_requirements.LIST.read_text()


@pytest.mark.nightly
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the list is that of the build for x86_64")
def test_the_list_is_what_the_index_says() -> None:
    found = torch_requirements.of_index(torch_requirements.pinned_torch())
    if found is None:
        pytest.skip("pip's default index can't be reached, or has no such build of torch")
    assert found == torch_requirements.listed(), "python -m tests.structure.torch_requirements writes the list anew"

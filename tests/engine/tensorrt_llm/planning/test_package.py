"""What is said of the package by its version and features, without one being there."""

import importlib.metadata
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from engine.tensorrt_llm.planning import package
from engine.types import ModelError
from tests.structure.sources import ROOT
from tests.structure.test_light_imports import what_loads


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    (folder / "tensorrt_llm").mkdir()
    (folder / "tensorrt_llm" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    if version is not None:
        metadata = folder / f"tensorrt_llm-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {version}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "tensorrt_llm", raising=False)


def test_it_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "tensorrt_llm", raising=False)
    with pytest.raises(
        ModelError, match="is not installed for this Python; take the tensorrt-llm image, or --engine-p"
    ):
        package.find()


@pytest.mark.parametrize(
    "version", ["1.2.1", "1.3.0rc9", "1.3.0rc21", "1.3.0rc21.post1", "0.21.0", "1.3.0.dev20260901"]
)
def test_it_may_be_too_old(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, version)
    with pytest.raises(ModelError, match=f"tensorrt_llm {version} is too old: LLM.encode came"):
        package.find()


@pytest.mark.parametrize("version", ["1.3.0rc22", "1.3.0rc100", "1.3.0", "1.4.0rc1", "1.4.0rc1+cu13", "2.0", "1.10.0"])
def test_it_is_found_and_not_imported(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, version)
    assert package.find() == version
    assert "tensorrt_llm" not in sys.modules


def test_a_source_tree_without_metadata_is_left_to_its_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, None)

    def lacking(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", lacking)
    assert package.find() == ""


def test_what_is_no_version_is_not_too_old() -> None:
    assert not package.is_too_old("main")


class Arguments:
    model_fields: ClassVar[dict[str, Any]] = {"encode_only": None, "dtype": None}


class OldArguments:
    model_fields: ClassVar[dict[str, Any]] = {"dtype": None}


class Whole:
    def encode(self, inputs: object, return_raw_logits: bool = False) -> None: ...


class Early:
    def encode(self, inputs: object) -> None: ...


class Stable:
    def generate(self, inputs: object) -> None: ...


def test_features_are_there() -> None:
    package.check_features("", Whole, Arguments)


@pytest.mark.parametrize(
    ("llm", "arguments", "feature"),
    [
        (Stable, Arguments, "LLM.encode"),
        (Early, Arguments, "return_raw_logits of LLM.encode"),
        (Whole, OldArguments, "encode_only in OldArguments"),
    ],
)
def test_features_that_lack_are_named(llm: type, arguments: type, feature: str) -> None:
    with pytest.raises(ModelError, match=f"has no {feature}, so it can't encode"):
        package.check_features("1.3.0", llm, arguments)


def test_what_is_checked_before_a_process_starts_needs_no_torch() -> None:
    modules = ("plan", "families", "backbone", "head", "quantization", "checkpoint", "package")
    assert what_loads([f"engine.tensorrt_llm.planning.{module}" for module in modules], root=ROOT) == {}

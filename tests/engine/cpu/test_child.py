"""The child process that converts a model: it says in one line why it can't, and its death is noticed."""

import os
import signal
import sys
from pathlib import Path

import pytest

from engine.cpu import child, converted, loading, openvino
from engine.cpu.child import ConversionProcess, convert
from engine.messages import LoadOptions
from engine.types import ModelError
from tests.engine.cpu.engines import load
from tests.engine.engines import load_options
from tests.engine.tiny_models import save


def test_the_line_of_a_model_that_can_not_be_converted(tmp_path: Path) -> None:
    options = load_options(tmp_path, compiles_in_child=True)
    with pytest.raises(ModelError) as here:
        convert(options, tmp_path)
    with pytest.raises(ModelError) as there, ConversionProcess(options, tmp_path) as started:
        started.wait()

    assert str(there.value) == str(here.value)
    assert str(tmp_path) in str(there.value)


def test_a_child_that_dies_is_an_error_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\nkill -9 $$\n")
    os.chmod(dying, 0o700)
    monkeypatch.setattr(sys, "executable", str(dying))

    with ConversionProcess(load_options(tmp_path), tmp_path) as started, pytest.raises(ModelError, match="with -9"):
        started.wait()


@pytest.fixture
def no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an image that takes compiled models alone, when one of them can't be used."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    monkeypatch.setattr(child, "_APPLICATION", f"{tmp_path}:{child._APPLICATION}")


@pytest.mark.usefixtures("no_torch")
def test_a_bert_is_converted_without_torch(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with ConversionProcess(load_options(save("bert", tmp_path / "model")), target) as started:
        started.wait()
    assert converted.read(target).computed_by == "those that numpy computes"


@pytest.mark.full
@pytest.mark.usefixtures("no_torch")
def test_without_torch_the_line_says_what_is_missing(tmp_path: Path) -> None:
    options = load_options(save("distilbert", tmp_path / "model"))
    needed = r"^this model needs torch and transformers to be converted: pip install 'embedline\[server\]'$"
    with pytest.raises(ModelError, match=needed), ConversionProcess(options, tmp_path) as started:
        started.wait()


def test_a_child_ends_where_the_parent_can_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[ConversionProcess] = []

    def kept(options: LoadOptions, target: Path) -> ConversionProcess:
        started.append(ConversionProcess(options, target))
        return started[0]

    def fail() -> None:
        raise ImportError("openvino is broken")

    monkeypatch.setattr(loading, "ConversionProcess", kept)
    monkeypatch.setattr(openvino, "import_openvino", fail)
    with pytest.raises(ImportError, match="openvino is broken"):
        load(save("bert", tmp_path / "model"), compiles_in_child=True, dtype="float32")
    assert started[0]._process.returncode == -signal.SIGKILL

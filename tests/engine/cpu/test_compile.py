"""The child process that compiles a model: it says in one line why it can't, and its death is noticed."""

import os
import sys
from pathlib import Path

import pytest

from engine.compile import compile_in_child
from engine.cpu import loading
from engine.types import ModelError
from tests.engine.load_options import load_options


def test_the_line_of_a_model_that_can_not_be_compiled(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as here:
        loading.load(name="", reason="", options=load_options(tmp_path))
    with pytest.raises(ModelError) as there:
        compile_in_child("openvino", load_options(tmp_path, compiles_in_child=True))

    assert str(there.value) == str(here.value)
    assert str(tmp_path) in str(there.value)


def test_a_child_that_dies_is_an_error_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\nkill -9 $$\n")
    os.chmod(dying, 0o700)
    monkeypatch.setattr(sys, "executable", str(dying))

    with pytest.raises(ModelError, match="ended with -9"):
        compile_in_child("openvino", load_options(tmp_path))

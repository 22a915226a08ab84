"""Where compiled kernels are kept: beside kept models, unless the user says otherwise or others can write there."""

import logging
import os
import stat
from pathlib import Path

import pytest

from engine.fused import loading


def test_beside_the_kept_models(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    loading.keep_kernels(tmp_path / "cache", environment)
    assert environment == {"TRITON_CACHE_DIR": str(tmp_path / "cache" / "triton")}
    assert stat.S_IMODE((tmp_path / "cache" / "triton").stat().st_mode) == 0o700
    loading.keep_kernels(tmp_path / "cache", environment)  # there it is
    assert environment == {"TRITON_CACHE_DIR": str(tmp_path / "cache" / "triton")}


@pytest.mark.parametrize("name", ["TRITON_CACHE_DIR", "TRITON_HOME"])
def test_what_the_user_says_stands(name: str, tmp_path: Path) -> None:
    environment = {name: "/elsewhere"}
    loading.keep_kernels(tmp_path, environment)
    assert environment == {name: "/elsewhere"}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", ["group", "everybody", "file"])
def test_a_folder_of_others_is_not_used(wrong: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "triton"
    if wrong == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o770 if wrong == "group" else 0o707)
    environment: dict[str, str] = {}
    with caplog.at_level(logging.WARNING):
        loading.keep_kernels(tmp_path, environment)
    assert environment == {}
    assert "compiled kernels are not cached in" in caplog.text


def test_triton_looks_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = pytest.importorskip("triton.knobs")
    for name in ("TRITON_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.setenv(name, "elsewhere")  # so that afterwards all is as it was before
        monkeypatch.delenv(name)
    loading.keep_kernels(tmp_path, os.environ)
    assert knobs.cache.dir == str(tmp_path / "triton")

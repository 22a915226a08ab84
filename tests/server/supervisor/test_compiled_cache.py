"""Where compiled models are kept: as asked, or by the XDG specification, or nowhere."""

import errno
import logging
from pathlib import Path

import pytest

from server.settings.flag import SettingsError
from server.supervisor.model_files import cache_folder, remove_leftovers


def test_the_default_is_the_users_cache(tmp_path: Path) -> None:
    assert cache_folder(None, {"HOME": str(tmp_path)}) == str(tmp_path / ".cache" / "embedline")
    xdg = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    assert cache_folder(None, xdg) == str(tmp_path / "xdg" / "embedline")
    assert cache_folder(None, {**xdg, "XDG_CACHE_HOME": "relative"}) == str(tmp_path / ".cache" / "embedline")
    assert (tmp_path / "xdg" / "embedline").stat().st_mode & 0o777 == 0o700


@pytest.mark.holds("Engines on a CPU")
def test_as_asked(tmp_path: Path) -> None:
    asked = tmp_path / "a" / "b"
    assert cache_folder(str(asked), {}) == str(asked)
    assert [(path.name, path.stat().st_mode & 0o777) for path in asked.iterdir()] == [("compiled", 0o700)]
    assert list((asked / "compiled").iterdir()) == []
    assert cache_folder("off", {}) is None


def test_leftovers_are_removed_from_the_caches_and_nowhere_else(tmp_path: Path) -> None:
    for name in ("compiled", "fused", "a-users"):
        (tmp_path / name / ".new-x").mkdir(parents=True)
        (tmp_path / name / ".old-x").mkdir()
    remove_leftovers(str(tmp_path))
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*"))
    assert left == ["a-users/.new-x", "a-users/.old-x"]
    remove_leftovers(None)


def test_one_that_was_asked_for_must_be_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "compiled").touch()
    for asked in (tmp_path / "file", tmp_path):
        with pytest.raises(SettingsError, match="--compiled-cache can't be written to"):
            cache_folder(str(asked), {})


def test_a_home_that_nobody_knows() -> None:
    with pytest.raises(SettingsError, match="--compiled-cache starts with a home folder that is unknown"):
        cache_folder("~nobody-of-this-name/cache", {})


def test_a_default_that_is_not_writable_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        assert cache_folder(None, {"HOME": str(tmp_path / "file")}) is None
    assert "no cache of compiled models" in caplog.text


@pytest.mark.holds("Containers")
def test_a_folder_of_somebody_elses_says_what_helps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests may run as root, who is refused nothing."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(
        SettingsError, match=r"Permission denied; .*--user \$\(id -u\):\$\(id -g\)\); off keeps no cache"
    ):
        cache_folder(str(tmp_path / "data"), {})

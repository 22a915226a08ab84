"""Copies are made once, by one process, beside others that make or only read them."""

import logging
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.store import copies
from tests.engine.tensorrt_llm.quantize.models import end_of_processes
from tests.server_e2e.running import PATIENCE

pytestmark = pytest.mark.holds("TensorRT-LLM")
MADE = "as it was made"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "root"
    end_of_processes(tmp_path / "root")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "embedline.engine")
    return caplog


class Maker:
    """Makes copies with one file, and counts them."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def __call__(self, copy: Path, *, most_others: int = 8, can_make: bool = True) -> bool:
        make: Callable[[], None] | None = (lambda: self._make(copy)) if can_make else None
        return copies.made_once(copy, "the copy", check=lambda: _check(copy), make=make, most_others=most_others)

    def _make(self, copy: Path) -> None:
        self.made.append(copy.name)
        new = copies.unfinished(copy)
        new.mkdir()
        self.begun.set()
        assert self.go_on.wait(PATIENCE)
        (new / "file").write_text(MADE)
        new.rename(copy)


def _check(copy: Path) -> None:
    if (copy / "file").read_text() != MADE:
        raise ValueError("it has changed")


@pytest.fixture
def maker() -> Maker:
    return Maker()


def there(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir())


def test_it_is_made_once(root: Path, maker: Maker, log: pytest.LogCaptureFixture) -> None:
    assert not maker(root / "a", can_make=False)
    assert maker(root / "a")
    assert maker(root / "a", can_make=False)
    assert maker(root / "a")
    assert maker.made == ["a"]
    assert log.messages == [f"found the copy in {root / 'a'}"] * 2


@pytest.mark.parametrize("damage", ["changed", "lacking", "rights"])
def test_what_is_damaged_or_others_could_have_written_is_made_anew(
    damage: str, root: Path, maker: Maker, log: pytest.LogCaptureFixture
) -> None:
    maker(root / "a")
    match damage:
        case "changed":
            (root / "a" / "file").write_bytes(b"\xff")
        case "lacking":
            (root / "a" / "file").unlink()
        case "rights":
            (root / "a").chmod(0o770)
    assert maker(root / "a")
    assert maker.made == ["a", "a"]
    assert log.messages[0].startswith(f"the copy in {root / 'a'} can't be used: ")
    _check(root / "a")


@pytest.mark.usefixtures("log")
def test_one_makes_it_while_the_others_wait(root: Path, maker: Maker) -> None:
    """Threads stand for processes: a lock is the open file's, not the process's. Another copy's maker does not wait."""
    num_waiting = threading.Semaphore(0)

    class Waiting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "waiting for it" in record.getMessage():
                num_waiting.release()

    waiting, logger = Waiting(), logging.getLogger("embedline.engine")
    logger.addHandler(waiting)
    maker.go_on.clear()
    with ThreadPoolExecutor(3) as starts:
        try:
            first = starts.submit(maker, root / "a")
            assert maker.begun.wait(PATIENCE)
            others = [starts.submit(maker, root / "a") for _ in range(2)]
            assert all(num_waiting.acquire(timeout=PATIENCE) for _ in others)
            assert Maker()(root / "b")
            assert not any(start.done() for start in (first, *others))
        finally:
            maker.go_on.set()
            logger.removeHandler(waiting)
    assert all(start.result() for start in (first, *others))
    assert maker.made == ["a"]
    assert there(root) == ["a", "b"]


def test_what_killed_starts_left_of_this_copy_and_of_others_is_removed(root: Path, maker: Maker) -> None:
    for copy in (root / "a", root / "b"):
        copies.unfinished(copy).mkdir(parents=True)
    root.chmod(0o700)
    assert maker(root / "a")
    copies.unfinished(root / "b").mkdir()
    assert maker(root / "a")
    assert there(root) == ["a"]


def test_it_is_this_users_alone_whatever_the_umask(root: Path, maker: Maker) -> None:
    before = os.umask(0)
    try:
        maker(root / "a")
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (root, root / "a")} == {0o700}
    assert maker(root / "a")
    assert maker.made == ["a"]


def test_the_newest_copies_stay_and_those_in_use(root: Path, maker: Maker) -> None:
    for name in "abc":
        maker(root / name, most_others=1)
    assert there(root) == ["a", "b", "c"]  # all three are in use
    for seconds, name in enumerate("abc"):
        os.utime(root / name, (seconds, seconds))
    maker(root / "a", most_others=1)  # used again, and last
    end_of_processes(root)
    maker(root / "d", most_others=1)
    assert there(root) == ["a", "d"]


@pytest.mark.parametrize("has_lock", [True, False])
def test_those_who_may_only_read_share_the_lock_and_make_none(
    has_lock: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, lock = tmp_path / "mine", tmp_path / "mine.lock"
    copy.mkdir()
    if has_lock:
        lock.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with copies.locked(copy, "the copy"), copies.locked(copy, "the copy"):  # the second one does not wait
        pass
    assert lock.exists() == has_lock


def test_a_copy_that_another_process_removes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, *others = (tmp_path / name for name in ("mine", "other 0", "other 1"))
    for folder in (copy, *others):
        folder.mkdir()
    is_dir = Path.is_dir

    def is_dir_for_the_last_time(path: Path) -> bool:
        found = is_dir(path)
        if path == others[0]:
            shutil.rmtree(path)
        return found

    monkeypatch.setattr(Path, "is_dir", is_dir_for_the_last_time)
    copies._make_way(copy, most_others=0)
    assert not any(is_dir(folder) for folder in (copy, *others))

"""Finds damage in the files of a store before SQLite opens them: it drops what is behind a bad byte of its log unsaid.

https://www.sqlite.org/walformat.html
"""

import sqlite3
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from server.jobs.store.errors import StoreUnusable

_LOG_HEAD, _FRAME_HEAD = 32, 24
_MAGIC = 0x377F0682  # the last bit says whether checksums are of big-endian words
_INDEX_HEAD = 48  # of each of its two copies in the -shm file
_AT_A_TIME = 4096  # frames that are looked at together
_MANY_BYTES = 1 << 30  # of a file whose every page is looked at before it is used

_Words = np.ndarray[Any, np.dtype[np.uint32]]


@dataclass(frozen=True, slots=True)
class _Log:
    num_committed: int  # frames, of all commits before the first bad frame
    num_behind: int  # commits behind it
    salts: bytes
    page_size: int

    @property
    def end(self) -> int:
        """Of what is sound, in bytes of the file."""
        return _LOG_HEAD + self.num_committed * (_FRAME_HEAD + self.page_size)


def check_log(file: Path) -> str | None:
    """A sentence for the log of a server whose last commits may be lost; None where there is nothing to say.

    Raises StoreUnusable where commits are lost for certain, and OSError.
    """
    log, index = Path(f"{file}-wal"), Path(f"{file}-shm")
    size = log.stat().st_size if log.exists() else 0
    if size > _LOG_HEAD and not (file.exists() and file.stat().st_size):
        raise StoreUnusable(f"{file} is empty, and its log {log.name} is not: put it back from a copy")
    found = _read(log) if size > _LOG_HEAD else None
    known, in_file = _frames_of_index(index, found.salts if found else b"")
    num_committed = found.num_committed if found else 0
    if num_committed < known:
        end = found.end if found and num_committed >= in_file else 0
        lost = "what was accepted last is lost" if known > in_file else "nothing is lost that is in the file"
        raise StoreUnusable(
            f"{log} is damaged behind byte {found.end if found else 0}: {lost}. Put the folder back from a copy; or go "
            f"on with what is left, by: truncate -s {end} {log} && rm -f {index}"
        )
    if size > _LOG_HEAD and (found is None or found.num_behind):
        return f"{log.name} is not whole: a loss of power cut off its last commit, or it is damaged and more are lost"
    return None


def check_pages(connection: sqlite3.Connection, file: Path) -> None:
    """Raises StoreUnusable where the file is damaged. Of a large one only what finds requests and documents."""
    is_large = file.stat().st_size > _MANY_BYTES
    asked = (
        [f"PRAGMA integrity_check({name})" for name in ("requests", "documents")]
        if is_large
        else ["PRAGMA quick_check"]
    )
    for question in asked:
        (answer,) = connection.execute(question).fetchone()
        if answer != "ok":
            raise StoreUnusable(f"{file} is damaged, put the folder back from a copy: {answer.splitlines()[0]}")


def _frames_of_index(index: Path, salts: bytes) -> tuple[int, int]:
    """How many frames the latest process committed, and how many of them are in the file.

    0 where nobody knows, as after a loss of power.
    """
    try:
        with index.open("rb") as opened:
            first, second, in_file = opened.read(_INDEX_HEAD), opened.read(_INDEX_HEAD), opened.read(4)
    except OSError:
        return 0, 0
    if len(in_file) < 4 or first != second or not first[12] or (salts and first[32:40] != salts):
        return 0, 0
    sums = _sums(np.frombuffer(first[:40], np.uint32)[None], np.zeros((1, 2), np.uint32))
    if sums.tobytes() != first[40:]:
        return 0, 0
    return int(struct.unpack_from("=I", first, 16)[0]), int(struct.unpack("=I", in_file)[0])


def _read(log: Path) -> _Log | None:
    """None where its head is damaged."""
    with log.open("rb") as opened:
        head = opened.read(_LOG_HEAD)
        magic, _, page_size = struct.unpack_from(">III", head)
        order = ">" if magic & 1 else "<"
        words = np.frombuffer(head[:24], f"{order}u4").astype(np.uint32)
        last = _sums(words[None], np.zeros((1, 2), np.uint32))
        if magic & ~1 != _MAGIC or last.astype(">u4").tobytes() != head[24:]:
            return None
        return _frames(opened, head[16:24], page_size, order, last)


def _frames(opened: Any, salts: bytes, page_size: int, order: str, last: _Words) -> _Log:
    size, number, committed, behind, is_sound = _FRAME_HEAD + page_size, 0, 0, 0, True
    while rows := opened.read(size * _AT_A_TIME):
        frames = np.frombuffer(rows[: len(rows) // size * size], np.uint8).reshape(-1, size)
        is_ours = (frames[:, 8:16] == np.frombuffer(salts, np.uint8)).all(axis=1)
        stored = np.ascontiguousarray(frames[:, 16:24]).view(">u4").astype(np.uint32)
        before = np.concatenate([last, stored[:-1]])
        words = np.concatenate([frames[:, :8], frames[:, _FRAME_HEAD:]], axis=1).view(f"{order}u4").astype(np.uint32)
        is_right = is_ours & (_sums(words, before) == stored).all(axis=1)
        commits = np.ascontiguousarray(frames[:, 4:8]).view(">u4")[:, 0] != 0
        num_sound = int(np.argmin(is_right)) if not is_right.all() else len(frames)
        if not is_sound:
            num_sound = 0
        if (sound := np.flatnonzero(commits[:num_sound])).size:
            committed = number + int(sound[-1]) + 1
        behind += int((commits & is_right)[num_sound:].sum())
        is_sound &= num_sound == len(frames)
        number, last = number + len(frames), stored[-1:]
        if len(rows) % size or not is_ours.any():
            break
    return _Log(committed, behind, salts, page_size)


def _sums(words: _Words, before: _Words) -> _Words:
    """SQLite's checksums of rows of words, each from the one before it."""
    first, second = before[:, 0].copy(), before[:, 1].copy()
    for at in range(0, words.shape[1], 2):
        first += words[:, at] + second
        second += words[:, at + 1] + first
    return np.stack([first, second], axis=1)

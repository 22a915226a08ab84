"""What of a new folder has been written for good, so that whoever is killed can go on where that was.

A folder beside the new one holds both: `model`, as far as it has come, and `journal`, lines of JSON. The first is the
key of what is being made; each further one names a tensor of a file, written after its bytes have reached the disk.
A line that was cut short counts for nothing. Knows no tensor.
"""

import fcntl
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from engine.types import ModelError

_JOURNAL, _MODEL = "journal", "model"


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor that has been written."""

    file: str
    tensor: str
    error: float | None  # relative RMS; None = it was copied


class Journal:
    """Opened by one process at a time."""

    def __init__(self, folder: Path, key: str) -> None:
        """Go on in `folder`, or begin where it is not there or holds something of another key.

        Raises ModelError where it is somebody else's, or another process has it; OSError.
        """
        if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / _JOURNAL).is_file())):
            raise ModelError(f"{folder} is in the way: it is not what an unfinished quantization leaves")
        folder.mkdir(exist_ok=True)
        self.folder, self.model = folder, folder / _MODEL
        self._fd = os.open(folder / _JOURNAL, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._lock()
            self.entries = self._read(key)
        except BaseException:
            os.close(self._fd)
            raise
        self.is_resumed = bool(self.entries)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def add(self, entries: list[Entry]) -> None:
        """Their bytes are on the disk."""
        self._write([[entry.file, entry.tensor, entry.error] for entry in entries])
        self.entries += entries

    def finish(self, out: Path) -> None:
        """Make `out` of what was written, and leave nothing beside it."""
        self.model.rename(out)
        shutil.rmtree(self.folder)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held as long as the file is open
        except BlockingIOError as error:
            raise ModelError(f"another process is at work in {self.folder}") from error

    def _read(self, key: str) -> list[Entry]:
        """What the journal has of this key; without any, it begins anew."""
        text = (self.folder / _JOURNAL).read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        first, *rest = whole.splitlines() or [b""]
        if first != _line(key).rstrip():
            os.ftruncate(self._fd, 0)  # before the files, or it would promise what is not there any more
            if self.model.exists():
                shutil.rmtree(self.model)
            self._write([key])
            return []
        os.ftruncate(self._fd, len(whole))
        os.lseek(self._fd, 0, os.SEEK_END)
        return [Entry(*json.loads(line)) for line in rest]

    def _write(self, values: list[Any]) -> None:
        rest = b"".join(map(_line, values))
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        os.fdatasync(self._fd)


def is_left_by_a_finished_one(folder: Path) -> bool:
    """Whether the new folder has got its name, and nothing but the journal is left to remove."""
    return (folder / _JOURNAL).is_file() and not (folder / _MODEL).exists()


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"

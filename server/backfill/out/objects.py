"""An object store as the place of a job's files, through fsspec: s3://, gs://, az://, hf:// and whatever else it knows.

A file is made in the temporary folder and put whole, in one request where it is of a part's size. Nothing is renamed
and nothing locked: that a part is done is said by its last bytes, so a store that shows halves of files does no harm.
"""

import contextlib
import io
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

import fsspec

from server.backfill.errors import BackfillError, RefusedJob, in_words
from server.backfill.out.manifest import MANIFEST


class Objects:
    """Those whose names begin with one prefix, and a slash."""

    def __init__(self, url: str) -> None:
        """`url`: without secrets. Raises RefusedJob where its file system is not installed, or the URL is no good."""
        self.where = url.rstrip("/")
        try:
            self._filesystem, root = fsspec.core.url_to_fs(url)
        except Exception as error:
            raise RefusedJob(f"OUT can't be opened: {in_words(error)}") from None
        self._root = str(root).rstrip("/")

    def claim(self, worker: str) -> None:
        """Two processes of one worker are not told apart: they write the same parts."""
        try:
            others = self.names()
        except BackfillError as error:
            raise RefusedJob(f"OUT: {error}") from None
        if others and MANIFEST not in others:
            raise RefusedJob("OUT has files and no manifest of a job: take a new prefix")

    def names(self) -> set[str]:
        self._filesystem.invalidate_cache()
        try:
            found = self._asked("read", "", self._filesystem.ls, self._root, detail=False)
        except FileNotFoundError:
            return set()
        paths = {str(path).rstrip("/") for path in found}
        return {path.rpartition("/")[2] for path in paths if path != self._root}  # it may be an object itself

    def read(self, name: str) -> BinaryIO:
        path = f"{self._root}/{name}"
        size = self._asked("read", name, self._filesystem.info, path)["size"]

        def fetch(start: int, stop: int) -> bytes:
            found: bytes = self._asked("read", name, self._filesystem.cat_file, path, start=start, end=stop)
            return found

        return cast(BinaryIO, _Ranges(fetch, size))

    @contextlib.contextmanager
    def new_file(self, name: str, *, only_new: bool = False) -> Iterator[BinaryIO]:
        """Takes as much of the temporary folder meanwhile."""
        try:
            stream = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed below
        except OSError as error:
            raise BackfillError(f"the temporary folder can't be written: {in_words(error)}") from None
        with stream:
            try:
                yield cast(BinaryIO, stream)
                stream.flush()
            except OSError as error:
                raise BackfillError(f"the temporary folder can't be written: {in_words(error)}") from None
            # It has no name, so that nothing of it is left by a kill.
            own, mode = f"/proc/self/fd/{stream.fileno()}", "create" if only_new else "overwrite"
            try:
                self._asked("written", name, self._filesystem.put_file, own, f"{self._root}/{name}", mode=mode)
            except FileNotFoundError as error:
                raise BackfillError(f"{self.where}/{name} can't be written: {in_words(error)}") from None

    def close(self) -> None:
        pass

    def _asked(self, done: str, name: str, ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Raises FileNotFoundError as it is; every store's library has errors of its own for the rest."""
        try:
            return ask(*arguments, **options)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise BackfillError(f"{f'{self.where}/{name}'.rstrip('/')} can't be {done}: {in_words(error)}") from None


class _Ranges(io.RawIOBase):
    """An object, of which only what is asked for is fetched."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self._fetch, self._size, self._at = fetch, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._size)
        if stop <= self._at:
            return 0
        found = self._fetch(self._at, stop)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def readall(self) -> bytes:
        found = self._fetch(self._at, self._size) if self._at < self._size else b""
        self._at += len(found)
        return found

"""What a job asks of the place where its files are."""

from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol


class Files(Protocol):
    """Files by their names, without folders. Several threads may use it at a time."""

    @property
    def where(self) -> str:
        """The place in words, without secrets."""

    def claim(self, worker: str) -> None:
        """Once, before the first `new_file`. Raises RefusedJob where the place has other files than a job's, can't be
        written to, or is being written by another process of the same worker, as far as that can be known."""

    def names(self) -> set[str]:
        """As they are now; empty where the place is not there. Raises BackfillError."""

    def read(self, name: str) -> BinaryIO:
        """The file, for `with`, to be read from any place on. Raises OSError where it is not there, and BackfillError,
        now or as it is read, where the place can't be reached."""

    def new_file(self, name: str, *, only_new: bool = False) -> AbstractContextManager[BinaryIO]:
        """A file that appears under its name when the block ends, whole or not at all, and outlives what the place
        outlives. `only_new`: not where there is one, as far as the place can tell. Raises BackfillError."""

    def close(self) -> object:
        """Let another process write there."""

"""Routes in front of FastAPI whose requests go on to another process: what the application asks of each."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from server.dialects.route import Answer

_Decoded = TypeVar("_Decoded")
HeaderList = Sequence[tuple[bytes, bytes]]  # as they came: a name may be there twice


class Read(Protocol):
    """Reads the body and gives what the decoder makes of it. Raises what both raise."""

    def __call__(self, decode: Callable[[bytes], _Decoded], /, *, is_json: bool = True) -> Awaitable[_Decoded]: ...


PassOn = Callable[[Read, HeaderList, str], Awaitable[Answer]]  # the last is the owner of the request's key


class PassedOn(Protocol):
    """One route; `route` is its path, for metrics."""

    @property
    def route(self) -> str: ...

    def at(self, method: str, path: str) -> PassOn | None:
        """Answers a request there, and raises RequestError; None if it is not this route."""

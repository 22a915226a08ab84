"""A folder for the sockets of a server that is not started."""

from collections.abc import Iterator

import pytest

from server.supervisor.socket_folder import SocketFolder


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[SocketFolder]:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    made = SocketFolder()
    yield made
    made.remove()

"""The server that clients ask, and no proxies between."""

import pytest

from tests.server_e2e.running import Server


@pytest.fixture
def server(fake_server: Server) -> Server:
    return fake_server


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)

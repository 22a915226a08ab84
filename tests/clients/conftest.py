"""One server with the fake engine for all clients, and no proxies between."""

from collections.abc import Iterator

import pytest

from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import Server, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(*FAKE, folder=tmp_path_factory.mktemp("clients")) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)

"""What the log says at a start of who may ask."""

import logging
import socket

import pytest

from server.commands.serve import Prepared, _log_models_and_keys
from server.settings.api_keys import ApiKey, digest
from server.supervisor.listening.listeners import Listeners
from server.supervisor.listening.opening import Ports

ANYONE, EMPTY = "anyone who can reach", "API_KEY is empty"


@pytest.mark.holds("API keys")
@pytest.mark.parametrize(
    ("host", "variable", "has_keys", "warned"),
    [
        ("127.0.0.1", None, False, []),
        ("0.0.0.0", None, False, [ANYONE]),
        ("0.0.0.0", None, True, []),
        ("0.0.0.0", "", False, [EMPTY, ANYONE]),
        ("127.0.0.1", "", False, [EMPTY]),
        ("127.0.0.1", "sesame", True, []),
    ],
)
def test_a_server_that_is_open_to_others_says_so(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    host: str,
    variable: str | None,
    has_keys: bool,
    warned: list[str],
) -> None:
    monkeypatch.delenv("API_KEY", raising=False)
    if variable is not None:
        monkeypatch.setenv("API_KEY", variable)
    keys = [ApiKey("team", digest(b"sesame"))] if has_keys else []

    with caplog.at_level(logging.WARNING), socket.create_server((host, 0)) as http:
        ports = Ports(Listeners([http]), monitor=None)
        _log_models_and_keys(
            Prepared([], keys, key_file=None, ssl_copies=[], hosts=None, cache_dir=None, ports=ports), scheme="http"
        )

    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(warned)
    assert all(words in line for words, line in zip(warned, lines, strict=True))

"""Small parts: base URLs, names that load when they are used."""

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import embedline
from embedline import CancellationToken, Client, RequestProcessingPreference
from embedline.client.base_url import read_base_url
from embedline.client.connection import HttpConnection, Lookup
from embedline.client.failure import Kind
from embedline.client.pool import ConnectionPool
from tests.server_e2e.running import PATIENCE


@pytest.mark.parametrize(
    ("given", "url", "prefix"),
    [
        ("http://host:8080", "http://host:8080", ""),
        ("http://host:8080/v1/", "http://host:8080", ""),
        ("https://api.example.com/v1", "https://api.example.com", ""),
        ("http://[::1]:8080/a/b/v1", "http://[::1]:8080/a/b", "/a/b"),
        ("http://host/environments/production/sync", "http://host/environments/production/sync", None),
        ("http://[fe80::1%25eth0]:8080", "http://[fe80::1]:8080", ""),
        ("http://bücher.example:8080", "http://xn--bcher-kva.example:8080", ""),
        ("unix:///run/a%20b.sock", "unix:///run/a b.sock", ""),
    ],
)
def test_base_urls(given: str, url: str, prefix: str | None) -> None:
    origin = read_base_url(given)
    assert origin.url == url
    assert prefix is None or origin.prefix == prefix
    assert "%25" not in given or origin.host == "fe80::1%eth0"


@pytest.mark.parametrize("wrong", [None, 5, ["http://host", None]])
def test_a_base_url_that_is_no_text_is_refused_in_plain_words(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^base_url must be a text like http://host:8080 or a list of them, not "):
        Client(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "host:8080",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://u:secret@host",
        "http://h?a=secret",
        "http://h/ a",
        "http://host:0",
        "http://a..b",
        "http://a b",
        "http://a\x7fb",
        f"http://{'a' * 64}.example",
        "unix://run/a.sock",
        "unix:a.sock",
        "unix:///a.sock?key=secret",
    ],
)
def test_a_wrong_base_url_is_refused_without_its_secrets(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"^base_url must ") as refused:
        read_base_url(wrong)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("x-a", "a\r\nx-b: secret"), ("x-a", "Ω secret"), ("x a", "secret"), ("", ""), ("Content-Length", "5"), ("x", 5)],
)
def test_headers_that_can_not_be_sent_are_refused_without_their_values(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=r"^extra_headers") as refused:
        RequestProcessingPreference(extra_headers={name: value})
    assert "secret" not in str(refused.value)


CANCELS: dict[str, Callable[[], tuple[Any, Callable[[], None]]]] = {
    "token": lambda: (token := CancellationToken(), token.cancel),
    "connection": lambda: (
        one := HttpConnection(read_base_url("http://h"), None, Lookup("h", 80)),
        lambda: one.abort(Kind.ABORTED),
    ),
    "pool": lambda: (pool := ConnectionPool(read_base_url("http://h"), None, max_in_use=1), pool.wake_all),
}


@pytest.mark.parametrize("part", CANCELS)
def test_the_handler_of_a_signal_may_cancel_whatever_its_thread_is_at(part: str) -> None:
    """The handler runs in the main thread, which may hold any of the locks that cancelling takes."""
    owner, cancel = CANCELS[part]()

    def cancel_inside() -> None:
        with getattr(owner, "_changed", None) or owner._lock:
            cancel()

    thread = threading.Thread(target=cancel_inside, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_the_clients_names_are_loaded_when_they_are_used() -> None:
    code = "import sys, embedline; assert 'numpy' not in sys.modules; embedline.Client; assert 'numpy' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert all(getattr(embedline, name) for name in embedline.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        embedline.Klient  # noqa: B018

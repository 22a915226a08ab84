"""Small parts: base URLs, progress, names that load when they are used."""

import io
import subprocess
import sys

import pytest

import embedline
from embedline.client.progress import Progress
from embedline.client.transport.base_url import read_base_url


@pytest.mark.parametrize(
    ("given", "url", "prefix"),
    [
        ("http://host:8080", "http://host:8080", ""),
        ("http://host:8080/v1/", "http://host:8080", ""),
        ("https://api.example.com/v1", "https://api.example.com", ""),
        ("http://[::1]:8080/a/b/v1", "http://[::1]:8080/a/b", "/a/b"),
        ("http://host/environments/production/sync", "http://host/environments/production/sync", None),
    ],
)
def test_base_urls(given: str, url: str, prefix: str | None) -> None:
    origin = read_base_url(given)
    assert origin.url == url
    assert prefix is None or origin.prefix == prefix


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
    ],
)
def test_a_wrong_base_url_is_refused_without_its_secrets(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"^base_url must ") as refused:
        read_base_url(wrong)
    assert "secret" not in str(refused.value)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_one_line() -> None:
    times = iter([0.0, 1.0, 1.1, 2.0, 2.0])
    stream = Terminal()
    with Progress(1000, stream=stream, clock=lambda: next(times)) as progress:
        progress.add(250)
        progress.add(250)  # too soon
        progress.add(250)
    lines = stream.getvalue().replace("\x1b[K", "").split("\r")
    assert lines == [
        "",
        "250 of 1,000 inputs, 250/s, 3 s left",
        "750 of 1,000 inputs, 375/s, 1 s left",
        "750 of 1,000 inputs, 375/s, 1 s left\n",
    ]


def test_progress_in_a_file_is_a_line_now_and_then() -> None:
    times = iter([0.0, 5.0, 11.0, 12.0])
    stream = io.StringIO()
    with Progress(None, stream=stream, clock=lambda: next(times)) as progress:
        progress.add(1)
        progress.add(10)
    assert stream.getvalue() == "11 inputs, 1/s\n11 inputs, 1/s\n"


def test_the_clients_names_are_loaded_when_they_are_used() -> None:
    code = "import sys, embedline; assert 'numpy' not in sys.modules; embedline.Client; assert 'numpy' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert all(getattr(embedline, name) for name in embedline.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        embedline.Klient  # noqa: B018

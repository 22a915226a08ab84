"""Origins with stars: what they match, what they do not, and those that no browser sends."""

import re

import pytest

from server.settings.origins import origins_pattern, spelled_origin

pytestmark = pytest.mark.holds("CORS")


def matches(pattern: str, origin: str) -> bool:
    return re.fullmatch(origins_pattern([spelled_origin(pattern)]), origin) is not None


@pytest.mark.parametrize(
    ("pattern", "origin"),
    [
        ("chrome-extension://*", "chrome-extension://abcdefghijklmnopabcdefghijklmnop"),
        ("moz-extension://*", "moz-extension://1f2e3d4c-0000-4a5b-8c9d-abcdef012345"),
        ("https://*.example.org", "https://app.example.org"),
        ("https://*.example.org", "https://my-app_2.example.org"),
        ("https://app-*.example.org", "https://app-7.example.org"),
        ("https://*.*.example.org", "https://a.b.example.org"),
        ("https://*.example.org:8443", "https://app.example.org:8443"),
        ("http://localhost:*", "http://localhost:5173"),
        ("http://[::1]:*", "http://[::1]:3000"),
        ("https://Example.ORG", "https://example.org"),
        ("https://example.org:443", "https://example.org"),
        ("http://example.org:080", "http://example.org"),
        ("http://example.org:443", "http://example.org:443"),
        ("app://obsidian.md", "app://obsidian.md"),
    ],
)
def test_what_is_matched(pattern: str, origin: str) -> None:
    assert matches(pattern, origin)


@pytest.mark.parametrize(
    ("pattern", "origin"),
    [
        *(
            ("https://*.example.org", origin)
            for origin in (
                "https://example.org",
                "https://.example.org",
                "https://a.b.example.org",
                "https://evil-example.org",
                "https://evil.exampleXorg",
                "https://evil.com/.example.org",
                "https://evil.com#.example.org",
                "https://evil.com:1.example.org",
                "https://user@a.example.org",
                "https://a.example.org.evil.com",
                "https://a.example.org:8443",
                "https://a.example.org\n",
                "https://\u212a.example.org",
                "http://a.example.org",
                "xhttps://a.example.org",
            )
        ),
        ("chrome-extension://*", "chrome-extension://"),
        ("chrome-extension://*", "chrome-extension://a.b"),
        ("chrome-extension://*", "https://a"),
        ("http://localhost:*", "http://localhost"),
        ("http://localhost:*", "http://localhost:80@evil.com"),
        ("http://localhost:*", "http://localhost:x"),
        ("https://app-*.example.org", "https://app-.example.org"),
        ("*", "https://any.example"),
    ],
)
def test_what_is_not(pattern: str, origin: str) -> None:
    assert not matches(pattern, origin)


def test_no_origin_matches_nothing() -> None:
    assert re.fullmatch(origins_pattern([]), "") is None


@pytest.mark.parametrize(
    "origin",
    [
        "https://*",
        "https://*:8080",
        "https://example.*",
        "https://localhost*",
        "*://example.org",
        "*.example.org",
        "http*://example.org",
        "https://example.org/",
        "https://example.org/*",
        "https://a..example.org",
        "https://b\u00fccher.example",
        "https://example.org:99999",
        "https://example.org:8*",
        "https://user@example.org",
        "http://[::*]",
        "null",
        "",
    ],
)
def test_what_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match=r"^takes "):
        spelled_origin(origin)

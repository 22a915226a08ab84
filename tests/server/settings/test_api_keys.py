"""API keys from flags and files: names and digests, and refusals that never show a key."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from server.settings.api_keys import ApiKey, api_keys
from server.settings.flag import SettingsError


def key(name: str, text: str) -> ApiKey:
    return ApiKey(name, hashlib.sha256(text.encode()).digest())


def numbered(name: str, text: str) -> ApiKey:
    return replace(key(name, text), is_numbered=True)


def test_no_keys() -> None:
    assert api_keys((), None) == []


def test_keys_of_flags_are_numbered() -> None:
    assert api_keys(("first", "se:cond="), None) == [numbered("key-1", "first"), numbered("key-2", "se:cond=")]


@pytest.mark.holds("API keys")
def test_a_file_names_its_keys(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"hidden").hexdigest()
    file = tmp_path / "keys"
    file.write_text(f"# ours\n\nteam-a:open\n  team.b: sha256={digest.upper()} \r\nplain\nsha256={'0' * 64}\n")

    assert api_keys(("flag",), str(file)) == [
        numbered("key-1", "flag"),
        key("team-a", "open"),
        key("team.b", "hidden"),
        numbered("line-5", "plain"),
        ApiKey("line-6", bytes(32), is_numbered=True),
    ]


@pytest.mark.holds("Fair shares")
def test_a_key_of_the_file_may_have_a_weight_and_a_ceiling(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("a:open weight=2.5\nb:shut  tokens-per-minute=120000   weight=1\nplain tokens-per-minute=1\n")

    assert api_keys((), str(file)) == [
        replace(key("a", "open"), weight=2.5),
        replace(key("b", "shut"), tokens_per_minute=120_000),
        replace(numbered("line-3", "plain"), tokens_per_minute=1),
    ]


def test_keys_of_flags_and_file_have_different_names(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("key-1:sesame\n")
    with pytest.raises(SettingsError, match="name of one that --api-key gives"):
        api_keys(("other",), str(file))


@pytest.mark.parametrize("given", ["", " ", "two words", "naïve", "tab\tbed", "line\nbreak"])
def test_what_no_header_can_carry_is_no_key(given: str) -> None:
    with pytest.raises(SettingsError, match=r"^--api-key: ") as refused:
        api_keys(("good", given), None)
    assert not given.strip() or given not in str(refused.value)


def test_the_same_key_twice() -> None:
    with pytest.raises(SettingsError, match=r"^--api-key: the same key is given twice$"):
        api_keys(("sesame", "sesame"), None)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has no key"),
        ("# nothing\n\n", "has no key"),
        ("good\nbad name:sesame", "line 2"),
        (":sesame", "line 1"),
        ("name:", "line 1"),
        ("name:sha256=sesame", "line 1"),
        ("name:sesame1\nname:sesame2", "line 2: another line has the same name"),
        ("a:sesame\nb:sesame", "twice"),
        ("a:sesame and more", "line 1: after the key"),
        ("a:sesame weight=0", "line 1: after the key"),
        ("a:sesame weight=1e3", "line 1: after the key"),
        ("a:sesame weight=inf", "line 1: after the key"),
        ("a:sesame weight=1001", "line 1: after the key"),
        ("a:sesame tokens-per-minute=0", "line 1: after the key"),
        ("a:sesame tokens-per-minute=1.5", "line 1: after the key"),
        ("a:sesame tokens-per-minute=" + "9" * 5000, "line 1: after the key"),
        ("a:sesame tokens-per-minute=٣", "line 1: after the key"),
        ("\n".join(f"a{number}:sesame{number}" for number in range(65_001)), "more than 65000 keys"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, content: str | bytes, words: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(SettingsError, match=r"^--api-key-file") as refused:
        api_keys((), str(file))

    assert words in str(refused.value)
    assert "sesame" not in str(refused.value)


def test_a_file_that_is_too_long_is_not_read_in_part(tmp_path: Path) -> None:
    """The part could end within a key, and then its beginning would be one."""
    file = tmp_path / "keys"
    file.write_bytes(b"#" * 9_999_990 + b"\nsesame-and-more\n")
    with pytest.raises(SettingsError, match=r"^--api-key-file has more than 10000000 bytes$"):
        api_keys((), str(file))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in tmp_path / "none", tmp_path:
        with pytest.raises(SettingsError, match="--api-key-file can't be read"):
            api_keys((), str(path))

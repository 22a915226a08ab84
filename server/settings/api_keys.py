"""API keys from flags and files, kept as names and digests.

A key of the file may have a weight and a ceiling. Error messages name the line, never the key.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from server.settings.files import FileVersion, read_text, version_of
from server.settings.flag import SettingsError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = re.compile(r"[!-~]+")  # what fits into a header
_HASHED = "sha256="
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_MAX_KEYS = 65_000  # each has an index of 16 bits between processes
_MIN_WEIGHT, _MAX_WEIGHT = 0.001, 1000.0
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_COUNT = re.compile(r"[1-9][0-9]{0,14}")  # fits into what processes share
_WEIGHT, _CEILING = "weight", "tokens-per-minute"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as the server keeps it."""

    name: str  # for logs, and what tells keys apart
    digest: bytes  # SHA-256
    weight: float = 1.0  # its part of the engines while others wait too, in proportion to theirs
    tokens_per_minute: int | None = None  # the most that it may send; None = no ceiling
    is_numbered: bool = False  # its name is only its place among the others, which changes when one of them goes

    @property
    def owner(self) -> str:
        """The owner that is kept on the disk with a request: it will mean this key later too. No name has a `=`."""
        return _HASHED + self.digest.hex() if self.is_numbered else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFile:
    """A file of keys that may change while the server runs."""

    path: str  # absolute
    version: FileVersion  # when it was last read
    flag_keys: tuple[ApiKey, ...]  # those that are not in it


def digest(key: bytes) -> bytes:
    """The digest that is kept of a key."""
    return hashlib.sha256(key).digest()


def api_keys(keys: Sequence[str], file: str | None) -> list[ApiKey]:
    """The keys of --api-key and --api-key-file; without any, no request needs one. Raises SettingsError."""
    flag_keys = _of_flags(keys)
    return with_file(flag_keys, file) if file is not None else flag_keys


def key_file(keys: Sequence[str], file: str | None) -> KeyFile | None:
    """The facts needed to read --api-key-file again later; None for what can be read only once, as a pipe.

    To be called before `api_keys`, so that no change in between is missed. Raises SettingsError.
    """
    version = version_of(file) if file is not None else None
    if file is None or version is None:
        return None
    return KeyFile(path=str(Path(file).absolute()), version=version, flag_keys=tuple(_of_flags(keys)))


def with_file(flag_keys: Sequence[ApiKey], path: str) -> list[ApiKey]:
    """The keys given, and those that the file has now. Raises SettingsError."""
    found = [*flag_keys, *_from_file(path)]
    if len({key.name for key in found}) < len(found):
        raise SettingsError("--api-key-file: a key has the name of one that --api-key gives; call it something else")
    if len({key.digest for key in found}) < len(found):
        raise SettingsError("--api-key-file: the same key is given twice")
    return found


def _of_flags(keys: Sequence[str]) -> list[ApiKey]:
    plain = [_plain(key, name=f"key-{number}", where="--api-key") for number, key in enumerate(keys, 1)]
    found = [replace(key, is_numbered=True) for key in plain]
    if len({key.digest for key in found}) < len(found):
        raise SettingsError("--api-key: the same key is given twice")
    return found


def _from_file(path: str) -> list[ApiKey]:
    keys = list(_lines(read_text(path, name="--api-key-file", max_bytes=10_000_000)))
    if not keys:
        raise SettingsError("--api-key-file has no key in it")
    if len(keys) > _MAX_KEYS:
        raise SettingsError(f"--api-key-file has more than {_MAX_KEYS} keys")
    return keys


def _lines(text: str) -> Iterator[ApiKey]:
    names: set[str] = set()
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        where = f"--api-key-file, line {number}"
        key = _line(line, number, where=where)
        if key.name in names:
            raise SettingsError(f"{where}: another line has the same name")
        names.add(key.name)
        yield key


def _line(line: str, number: int, *, where: str) -> ApiKey:
    """The key of a line: `name:sha256=<hex>`, `name:key` or a key alone, which is called by its line; then, with spaces
    between, `weight=` and `tokens-per-minute=`."""
    name, separator, rest = line.partition(":")
    if not separator:
        name, rest = f"line-{number}", line
    if not _NAME.fullmatch(name.strip()):
        raise SettingsError(f"{where}: the name before the colon may have letters, digits, dots, dashes, underscores")
    words = rest.split() or [""]
    key = _plain(words[0], name=name.strip(), where=where)
    return replace(key, is_numbered=not separator, **_extras(words[1:], where=where))


def _extras(words: Sequence[str], *, where: str) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name == _WEIGHT and _NUMBER.fullmatch(value) and _MIN_WEIGHT <= float(value) <= _MAX_WEIGHT:
            extras["weight"] = float(value)
        elif name == _CEILING and _COUNT.fullmatch(value):
            extras["tokens_per_minute"] = int(value)
        else:
            problem = f"{_WEIGHT}=NUMBER, from {_MIN_WEIGHT:g} to {_MAX_WEIGHT:g}, or {_CEILING}=NUMBER, at least 1"
            raise SettingsError(f"{where}: after the key there may only be {problem}")
    return extras


def _plain(key: str, *, name: str, where: str) -> ApiKey:
    if key.startswith(_HASHED):
        hexadecimal = key.removeprefix(_HASHED)
        if not _DIGEST.fullmatch(hexadecimal):
            raise SettingsError(f"{where}: {_HASHED} must be followed by 64 hexadecimal digits")
        return ApiKey(name, bytes.fromhex(hexadecimal))
    if not _KEY.fullmatch(key):
        raise SettingsError(f"{where}: a key must be ASCII characters without spaces, and not empty")
    return ApiKey(name, digest(key.encode()))

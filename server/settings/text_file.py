"""Reads the text files that flags name, as editors save them: in UTF-8, with or without a byte order mark."""

from pathlib import Path

from server.settings.flag import SettingsError
from wire.placeholder import placeholder


def read_text(path: str, *, name: str, max_bytes: int) -> str:
    """The text without the mark. `name` is what messages call the file. Raises SettingsError, which repeats nothing of
    the file."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise SettingsError(f"{name} can't be read: {placeholder(Path(path)) or error.strerror}") from None
    if len(content) > max_bytes:  # a part of it could end within a key
        raise SettingsError(f"{name} has more than {max_bytes} bytes")
    if found := placeholder(Path(path)):
        raise SettingsError(f"{name} can't be read: {found}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SettingsError(f"{name} is not UTF-8 text; save it as UTF-8") from None

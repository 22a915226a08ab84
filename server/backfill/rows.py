"""Rows of an input, as every kind of file gives them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_TEXT_CHARS = 8 << 20  # longer ones are bad rows: no model reads so much, and it would not fit into a request
ROWS_AT_A_TIME = 256


@dataclass(frozen=True, slots=True)
class BadText:
    """In place of a text that can't be embedded."""

    reason: str


Text = str | BadText


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows."""

    ids: Sequence[Any]  # one of each row; None where it has none
    texts: Sequence[Text]

    def __len__(self) -> int:
        return len(self.texts)

    def cut(self, start: int, stop: int) -> "Rows":
        """The rows of this range."""
        return Rows(self.ids[start:stop], self.texts[start:stop])


def checked(value: object) -> Text:
    """A cell's value as a text, or what is wrong with it."""
    if isinstance(value, BadText):
        return value
    if value is None:
        return BadText("the text is null")
    if not isinstance(value, str):
        return BadText(f"the text is no text but {type(value).__name__}")
    if not value:
        return BadText("the text is empty")
    if len(value) > MAX_TEXT_CHARS:
        return BadText(f"the text has {len(value):,} characters, and {MAX_TEXT_CHARS:,} are the most")
    return value


def is_unicode(text: str) -> bool:
    """False for one with halves of surrogate pairs: no text of any file."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

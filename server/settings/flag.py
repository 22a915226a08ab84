"""A flag: a field of a frozen dataclass with its help, its bounds, and how text becomes its value.

It does not know where a value comes from, and of names only which variables are text-embeddings-inference's.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Variables that text-embeddings-inference 1.9.3 reads (router/src/main.rs), less HOSTNAME. They are read without the
# prefix too, which every other flag's variable needs, since names such as ENGINE are set for other programs.
# fmt: off
_TEI_VARIABLES = frozenset({
    "MODEL_ID", "REVISION", "TOKENIZATION_WORKERS", "DTYPE", "SERVED_MODEL_NAME", "POOLING",
    "MAX_CONCURRENT_REQUESTS", "MAX_BATCH_TOKENS", "MAX_BATCH_REQUESTS", "MAX_CLIENT_BATCH_SIZE", "AUTO_TRUNCATE",
    "DEFAULT_PROMPT_NAME", "DEFAULT_PROMPT", "DENSE_PATH", "HF_API_TOKEN", "HF_TOKEN", "PORT", "UDS_PATH",
    "HUGGINGFACE_HUB_CACHE", "PAYLOAD_LIMIT", "API_KEY", "JSON_OUTPUT", "DISABLE_SPANS", "OTLP_ENDPOINT",
    "OTLP_SERVICE_NAME", "PROMETHEUS_PORT", "CORS_ALLOW_ORIGIN", "LOG_LEVEL",
})
# fmt: on
PREFIX = "EMBEDLINE_"
HUB_FLAGS = ("revision", "huggingface_hub_cache", "hf_token")  # what finding a model takes
_TRUE, _FALSE = frozenset({"true", "t", "1", "yes", "y", "on"}), frozenset({"false", "f", "0", "no", "n", "off"})


class SettingsError(Exception):
    """A setting that is unknown, malformed or impossible; one line that names the flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag. `name`, `kind` and `default` are the field's, filled in by `flags_of`."""

    help: str
    group: str
    aliases: tuple[str, ...] = ()  # other names on the command line; the long ones are read as variables too
    env: bool = True  # whether the environment is read
    least: float | None = None
    most: float | None = None
    one_of: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)  # other words -> one of these
    none_word: str = ""  # what stands for None, such as auto
    is_own: bool = False  # each of several models has its own: repeated on the command line, once for each
    default_text: str = ""  # in place of a default that differs from machine to machine
    name: str = ""
    kind: type = str  # str, int, float, bool or tuple (of str)
    default: Any = None

    @property
    def long_name(self) -> str:
        """The flag's name as it stands on the command line and in messages."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def spellings(self) -> tuple[str, ...]:
        """The names on the command line; a switch has a name to turn it on and one to turn it off."""
        return (self.long_name, f"--no-{self.long_name[2:]}") if self.kind is bool else (self.long_name, *self.aliases)

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables, the first one that is set counts: an image has PORT, a user EMBEDLINE_PORT."""
        names = [self.long_name, *(alias for alias in self.aliases if alias.startswith("--"))] if self.env else []
        plain = [name[2:].replace("-", "_").upper() for name in names]
        return tuple(each for name in plain for each in (PREFIX + name, name) if each != name or name in _TEI_VARIABLES)

    @property
    def shown_default(self) -> str:
        """The default as people are shown it; "" where there is nothing to say."""
        if self.default_text or self.default is None:
            return self.default_text or self.none_word
        if self.kind is bool:
            return str(self.default).lower()
        return ", ".join(self.default) if isinstance(self.default, tuple) else str(self.default)

    def from_text(self, text: str) -> Any:
        """The value of a word on the command line or in the environment. Raises ValueError with "must be …"."""
        if self.none_word and text.strip().lower() == self.none_word:
            return None
        if self.kind is bool:
            return _switch(text)
        if self.kind is tuple:
            return tuple(part.strip() for part in text.split(","))
        if self.kind is str:
            return self.checked(self._canonical(text.lower()) if self.one_of else text)
        try:
            value = self.kind(text)
        except ValueError:
            raise ValueError(self._form) from None
        return self.checked(value)

    def from_file(self, value: Any) -> Any:
        """The value of a TOML value, which has a type already. Raises ValueError with "must be …"."""
        if self.none_word and value == self.none_word:
            return None
        if self.kind is tuple and isinstance(value, list):
            value = tuple(value)
        elif self.kind is float and type(value) is int:
            value = float(value)
        is_list = isinstance(value, tuple) and all(isinstance(part, str) for part in value)
        if type(value) is not self.kind or (self.kind is tuple and not is_list):
            raise ValueError(self._form)
        return self.checked(self._canonical(value))

    def checked(self, value: Any) -> Any:
        """The value itself. Raises ValueError with "must be …" where it is out of bounds."""
        if value is None:
            return None
        if any("\0" in text for text in (value if isinstance(value, tuple) else (str(value),))):
            raise ValueError("must not have a NUL character")  # which no path may have
        if self.one_of and value not in self.one_of:
            raise ValueError(f"must be one of {', '.join(self.one_of)}")
        # written so that NaN, which compares false with everything, is refused
        if self.least is not None and not self.least <= value < float("inf"):
            raise ValueError(f"must be at least {self.least:g}")
        if self.most is not None and value > self.most:
            raise ValueError(f"must be at most {self.most:g}")
        return value

    def _canonical(self, value: Any) -> Any:
        return self.synonyms.get(value, value) if isinstance(value, str) else value

    @property
    def _form(self) -> str:
        forms = {str: "text", int: "a whole number", float: "a number", bool: "true or false", tuple: "a list of texts"}
        word = f" or {self.none_word}" if self.none_word else ""
        return f"must be {forms[self.kind]}{word}"


def flag(default: Any, group: str, help: str, *, is_secret: bool = False, **rest: Any) -> Any:
    """A dataclass field that is a flag. A secret is not in the settings' repr."""
    return dataclasses.field(
        default=default, repr=not is_secret, metadata={"flag": Flag(help=help, group=group, **rest)}
    )


def flags_of(settings: type) -> list[Flag]:
    """The flags of a dataclass, in the order of its fields."""
    hints = typing.get_type_hints(settings)
    return [
        dataclasses.replace(
            field.metadata["flag"], name=field.name, kind=_kind(hints[field.name]), default=field.default
        )
        for field in dataclasses.fields(settings)
        if "flag" in field.metadata
    ]


def check_flags(settings: Any) -> None:
    """Raises SettingsError for the first field that is out of bounds."""
    for one in flags_of(type(settings)):
        try:
            one.checked(getattr(settings, one.name))
        except ValueError as error:
            raise SettingsError(f"{one.long_name} {error}") from None


def _kind(hint: Any) -> type:
    """The kind of a value: `int` of `int | None`, `tuple` of `tuple[str, ...]`."""
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    kind: type = typing.get_origin(hint) or hint
    return kind


def _switch(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError("must be true or false")
    return word in _TRUE

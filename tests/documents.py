"""What the tests of the documentation read: its pages, their fenced blocks, and the flags they may name."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from server import program
from server.features.bench import bench
from server.features.convert.command import convert
from server.features.verify.command import verify
from server.settings.flag import flags_of
from server.settings.model import ModelSettings
from server.settings.settings import server_flags

ROOT = Path(__file__).resolve().parents[1]
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")


@dataclass(frozen=True, slots=True)
class Example:
    """A block of code, and the text block that says what it prints, if one follows."""

    language: str
    code: str
    output: str | None


def pages() -> list[Path]:
    """All Markdown files that people write, relative to the repository's root."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docker/*.md"), *ROOT.glob("examples/*.md")]
    return sorted(path.relative_to(ROOT) for path in found)


def examples(text: str) -> list[Example]:
    """The fenced blocks in order; a `text` block belongs to the block before it."""
    blocks = [(match[1], match[2]) for match in _FENCED.finditer(text)]
    return [
        Example(language, code, output if kind == "text" else None)
        for (language, code), (kind, output) in pairwise([*blocks, ("", "")])
        if language != "text"
    ]


def prose(text: str) -> str:
    """A page without its fenced blocks."""
    return _FENCED.sub("", text)


def flags_in(text: str) -> set[str]:
    """Everything that looks like a long flag."""
    return set(_FLAG.findall(text))


def known_flags() -> set[str]:
    """The flags of all commands."""
    commands: tuple[Callable[..., None], ...] = (bench, program.inspect, verify, program.doctor, convert)
    return flags_of_serve().union(*map(own_flags, commands))


def own_flags(command: Callable[..., None]) -> set[str]:
    """What a command takes beside the flags of `embedline serve`."""
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [name for name, parameter in inspect.signature(command).parameters.items() if parameter.kind in by_name]
    return {f"--{name.replace('_', '-')}" for name in named}


def flags_of_serve() -> set[str]:
    """The flags of `embedline serve`."""
    return {"--help", "--config"}.union(*(flag.spellings for flag in [*server_flags(), *flags_of(ModelSettings)]))

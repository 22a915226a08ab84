"""Which linear layers of a quantized checkpoint the library builds as plain ones, by the names that the files list.

Older versions compare a module's name with shell patterns. Newer ones also look at the modules around it, and take
what begins with "re:" for a regular expression. So some modules are certainly left plain, some may be, and a checkpoint
is right for any version only where both come to the same.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from engine.tensorrt_llm.refusal import unreadable

_REGEX = "re:"
_BELOW = ".*"
# Turned into shell patterns, since one from a stranger's file may run for hours: what can be, and what it becomes.
_PIECES = re.compile(r"(?P<any>\.\*)|(?P<one>\.)|\\(?P<escaped>[.\-_])|(?P<literal>[\w\-])")


class LeftPlain:
    """By patterns."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Raises ModelError for a regular expression that is more than names and wildcards."""
        self._shell = [pattern for pattern in patterns if not pattern.startswith(_REGEX)]
        self._regex = [_as_shell(pattern) for pattern in patterns if pattern.startswith(_REGEX)]

    def certainly(self, modules: Iterable[str]) -> bool:
        """Whether any of these is, in every version."""
        return any(_matches(module, self._shell) for module in modules)

    def maybe(self, modules: Iterable[str]) -> bool:
        """Whether any of these is, in some version."""
        patterns = [*self._shell, *self._regex]
        patterns += [pattern.removesuffix(_BELOW) for pattern in patterns if pattern.endswith(_BELOW)]
        return any(_matches(around, patterns) for module in modules for around in _and_around(module))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _and_around(module: str) -> Iterator[str]:
    while module:
        yield module
        module = module.rpartition(".")[0]


def _as_shell(pattern: str) -> str:
    expression = pattern.removeprefix(_REGEX).removeprefix("^").removesuffix("$")
    made, place = "", 0
    while place < len(expression):
        piece = _PIECES.match(expression, place)
        if piece is None:
            raise unreadable("can't tell which modules are left plain by a regular expression in the model's files")
        made += {"any": "*", "one": "?"}.get(piece.lastgroup or "", piece[0].removeprefix("\\"))
        place = piece.end()
    return made

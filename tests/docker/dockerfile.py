"""Reads a Dockerfile into stages of instructions: as much of the language as this repository's own file uses."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

_FLAG = re.compile(r"--([a-z-]+)=(\S+)\s+")
_ASSIGNMENT = re.compile(r"""([A-Za-z_][\w.]*)=("[^"]*"|\S*)""")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its lines joined."""

    name: str  # in capitals
    flags: dict[str, str]  # --from=build
    rest: str

    def words(self) -> list[str]:
        """The exec form's words. Raises ValueError where this is the shell form."""
        found = json.loads(self.rest)
        if not isinstance(found, list):
            raise ValueError("not in exec form")
        return [str(word) for word in found]

    def assignments(self) -> dict[str, str]:
        """NAME=value pairs of ENV, ARG and LABEL."""
        return {name: value.strip('"') for name, value in _ASSIGNMENT.findall(self.rest)}


@dataclass(frozen=True, slots=True)
class Stage:
    """What one FROM starts."""

    base: str
    name: str  # "" where it has none
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        return [instruction for instruction in self.instructions if instruction.name == name]

    def last(self, name: str) -> Instruction:
        return self.all(name)[-1]

    def assigned(self, name: str) -> dict[str, str]:
        """NAME=value pairs of ENV or ARG."""
        return {variable: value for line in self.all(name) for variable, value in line.assignments().items()}


def parse(file: Path) -> list[Stage]:
    """The stages, in order. Raises ValueError where an instruction comes before the first FROM."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE)
    stages: list[Stage] = []
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        if not line.strip():
            continue
        instruction = _instruction(line)
        if instruction.name == "FROM":
            base, _, name = instruction.rest.partition(" AS ")
            stages.append(Stage(base, name))
        elif stages:
            stages[-1].instructions.append(instruction)
        else:
            raise ValueError(f"{instruction.name} before FROM")
    return stages


def _instruction(line: str) -> Instruction:
    name, _, rest = line.strip().partition(" ")
    flags = {}
    while match := _FLAG.match(rest):
        flags[match[1]] = match[2]
        rest = rest[match.end() :]
    return Instruction(name.upper(), flags, rest.strip())

"""The findings of `inspect` and `doctor`: facts with their sources, as JSON or as lines of text. Also aligned
labels."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact, and which file, flag or system call it comes from."""

    name: str
    value: Any  # as JSON has it
    source: str = ""


def facts(findings: Iterable[Finding]) -> dict[str, Any]:
    """Values by name; under "sources", where each comes from."""
    found = list(findings)
    sources = {finding.name: finding.source for finding in found if finding.source}
    return {**{finding.name: finding.value for finding in found}, "sources": sources}


def lines(findings: Iterable[Finding], shown: Callable[[Finding], list[str]]) -> Iterator[str]:
    """The lines of text of each finding; `shown` gives the lines of its value."""
    for finding in findings:
        source = f"  ({finding.source})" if finding.source else ""
        first, *others = shown(finding)
        yield aligned(finding.name.removesuffix("_bytes").replace("_", " "), first + source)
        for text in others:
            yield aligned("", text)


def aligned(label: str, text: str) -> str:
    """One line: a label and what it labels."""
    return f"  {label:<16} {text}"

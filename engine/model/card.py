"""A model's card, README.md: whose model it is, and what it was made of.

Its front matter is YAML (huggingface_hub, repocard_data.py). Only lists and single values of the first level are read,
which are all that is asked for here.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_MAX_BYTES = 1 << 16  # the front matter and the first heading are at the beginning
_FRONT = re.compile(r"\A---\r?\n(.*?)\r?\n---\s*$", re.DOTALL | re.MULTILINE)
_KEY = re.compile(r"^([a-z_]+):[ \t]*(.*)$")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_MAX_NAMED = 3  # repositories in a message
_HEADING = re.compile(r"^#[ \t]+(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A model's card, in lower case but for `base_repositories`."""

    base_repositories: tuple[str, ...] = ()  # what the model was made from
    relation: str = ""  # to these: finetune, quantized, …
    tags: tuple[str, ...] = ()  # with pipeline_tag
    heading: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model and of those that it was made from."""
        return (self.heading, *map(str.lower, self.base_repositories))


def read_card(folder: Path) -> Card:
    """The card, empty if there is none, or a link other than those of the hub's cache. It never ends a start."""
    file = folder / "README.md"
    if file.is_symlink() and folder.parent.name != "snapshots":
        return Card()
    try:
        with file.open("rb") as opened:
            text = opened.read(_MAX_BYTES).decode(errors="replace")
    except OSError:
        return Card()
    front = _FRONT.match(text)
    values = _values(front[1]) if front else {}
    heading = _HEADING.search(text, front.end() if front else 0)
    return Card(
        base_repositories=tuple(values.get("base_model", ())),
        relation="".join(values.get("base_model_relation", ())).lower(),
        tags=tuple(map(str.lower, (*values.get("tags", ()), *values.get("pipeline_tag", ())))),
        heading=heading[1].strip().lower() if heading else "",
    )


def plain_form(folder: Path) -> str:
    """The end of a message on a model whose weights can't be read: where its card says that it is plain."""
    card = read_card(folder)
    named = [name for name in card.base_repositories if _REPOSITORY.fullmatch(name)][:_MAX_NAMED]
    if not named:
        return ""
    what = "the model that was quantized" if card.relation == "quantized" else "what it was made of"
    return f"; its card (README.md) names {what}: {', '.join(named)}"


def _values(front: str) -> dict[str, list[str]]:
    """The values under each key of the first level; nested ones are passed over."""
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for line in front.splitlines():
        if key := _KEY.match(line):
            values = found.setdefault(key[1], [])
            values += [_plain(each) for each in key[2].strip("[] ").split(",") if each.strip()]
        elif (item := line.strip()).startswith("- "):
            values.append(_plain(item[2:]))
    return found


def _plain(value: str) -> str:
    return value.strip().strip("\"'")

"""All repositories, and the table of docs/models.md that is made of them."""

from engine.model.known_code import kalm
from engine.model.known_code.known_code import translated
from engine.model.known_code.table import find
from tests.parity.repositories.facts import Head, Refused, Repository, Served
from tests.parity.repositories.models import (
    bert,
    decoders,
    decoders_2026,
    encoders,
    encoders_2026,
    jina,
    modern,
    multilingual,
    other_outputs,
    others,
    own_code_2026,
    rerankers,
    rerankers_2026,
)
from tests.parity.repositories.sources import Source

REPOSITORIES: tuple[Repository, ...] = (
    *bert.REPOSITORIES,
    *multilingual.REPOSITORIES,
    *others.REPOSITORIES,
    *modern.REPOSITORIES,
    *decoders.REPOSITORIES,
    *decoders_2026.REPOSITORIES,
    *jina.REPOSITORIES,
    *own_code_2026.REPOSITORIES,
    *encoders.REPOSITORIES,
    *encoders_2026.REPOSITORIES,
    *rerankers.REPOSITORIES,
    *decoders.GENERATIVE,
    *other_outputs.REPOSITORIES,
    *rerankers_2026.REPOSITORIES,
)

_UNVERIFIED = "unverified"
_POOLINGS = {"cls": "first token", "mean": "mean", "last": "last token"}


def table() -> str:
    """Markdown: a line for each repository, then the sources by number."""
    sources = _numbered()
    lines = ["| repository | served as | rows | ids |", "|---|---|---|---|"]
    for repository in REPOSITORIES:
        cells = (f"`{repository.name}`", _served(repository), _rows(repository, sources), _ids(repository, sources))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join((*lines, "", *(f"{number}. {source}" for source, number in sources.items())))


def _numbered() -> dict[Source, int]:
    """The sources in the order of the table, from 1."""
    named = [source for each in REPOSITORIES for source in (*each.rows, *((each.ids.source,) if each.ids else ()))]
    return {source: number for number, source in enumerate(dict.fromkeys(named), start=1)}


def _served(repository: Repository) -> str:
    expected = repository.expected
    if isinstance(expected, Refused):
        return f"refused: {expected.reason}; instead: {expected.instead}"
    first = "converted at the first start: " if repository.is_pickled else ""
    parts = [f"{expected.task}: {architecture(repository)}", *_output(expected), f"{expected.length:,} tokens"]
    if repository.prompts:
        parts.append(f"prompts {', '.join(repository.prompts)}")
    if repository.card:
        parts.append(f"its card's prompts {', '.join(repository.card_prompts)}")
    return first + ", ".join((*parts, *((repository.also,) if repository.also else ())))


def architecture(repository: Repository) -> str:
    """Which the code that it names is translated into; without code, what config.json says."""
    if repository.table is not None:
        return str(repository.config.get("model_type", "static"))
    config, options = dict(repository.config), repository.files.get(kalm.OPTIONS, {})
    if kalm.is_reranker(config, (), options):
        config = kalm.flattened(config, options)
    code = find(config)
    return str((translated(code, config, ()) if code else config)["model_type"])


def _output(expected: Served) -> list[str]:
    if expected.head is not Head.POOLED:
        return [str(expected.head)]
    normalized = ["length 1"] if expected.is_normalized else []
    return [_POOLINGS[expected.pooling], *normalized, f"{expected.size:,} numbers"]


def _rows(repository: Repository, sources: dict[Source, int]) -> str:
    if isinstance(repository.expected, Refused):
        return ""
    if not repository.rows:
        return f"{_UNVERIFIED}: {repository.doubt}" if repository.doubt else _UNVERIFIED
    where = f" (`{repository.held_by}`)" if repository.held_by else ""
    return _cited(repository.rows, sources) + where


def _ids(repository: Repository, sources: dict[Source, int]) -> str:
    known = repository.ids
    if known is None:
        return "" if isinstance(repository.expected, Refused) else _UNVERIFIED
    ends = " … ".join(f"`{token}`" if token else "" for token in (known.first, known.last)).strip()
    return f"{ends}, as {known.of} [{sources[known.source]}]"


def _cited(found: tuple[Source, ...], sources: dict[Source, int]) -> str:
    return f"equal [{', '.join(str(sources[source]) for source in found)}]"

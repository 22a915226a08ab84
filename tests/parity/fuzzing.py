"""Changed copies of model folders, drawn by a seed, and what must come of each: a refusal, or the reference's rows."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.model import coverage
from engine.model.coverage import Use
from engine.types import ModelError, OutputKind
from tests.engine.engines import load
from tests.parity.architectures import ARCHITECTURES, NUM_POSITIONS
from tests.parity.engines import compute
from tests.parity.folders import num_types
from tests.parity.references import Reference
from tests.parity.texts import Text, random_text

CONFIG = "config.json"
# What the trial at load says, which knows no key.
TRIAL = ("not finite", "in batches", "on token ids alone", "can't run the model")
_NOT_DRAWN = frozenset(("architectures", "dtype", "torch_dtype", "transformers_version"))
TOLERANCE = 1e-5  # of the largest value, where that is above 1
_SEQLENS = (5, 44, 23)  # longer than the windows of the tiny models, and than what their RoPE is scaled from
_MAX_LINE = 600  # characters of a refusal

Rows = list[NDArray[np.float32]]


def linked(folder: Path, target: Path, *left_out: str) -> Path:
    """A copy of a folder whose files are the same files, without those that the test writes."""
    for file in folder.rglob("*"):
        copy = target / file.relative_to(folder)
        if file.is_file() and str(file.relative_to(folder)) not in left_out:
            copy.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, copy)
    return target


def texts(name: str, longest: int = NUM_POSITIONS) -> list[Text]:
    """The same each time."""
    numbers = np.random.default_rng(7)
    return [random_text(numbers, min(seqlen, longest), num_types=num_types(name)) for seqlen in _SEQLENS]


def engines_of(name: str) -> tuple[str, ...]:
    """Those that read a folder each in its own way; the others load by the transformers engine's loader."""
    is_fused = any(row.is_fused for row in coverage.ARCHITECTURES if row.name == name)
    pools = ARCHITECTURES[name].own.pooling in ("cls", "mean", "lasttoken")
    return ("transformers", "fused") if is_fused and pools else ("transformers",)


def rows_or_refusal(name: str, folder: Path, engine_name: str = "transformers") -> tuple[Rows, list[Text]] | str:
    """The token rows of a batch by an engine, and its texts; or the one line with which it refuses the folder."""
    try:
        engine = load(engine_name, folder)
    except ModelError as refusal:
        message = str(refusal)
        assert message.strip(), "a refusal without a word"
        assert "\n" not in message
        assert len(message) <= _MAX_LINE, message
        return message
    batch = texts(name, engine.limits.max_seqlen)
    try:
        return [outputs[OutputKind.TOKENS] for outputs in compute(engine, batch, OutputKind.TOKENS)], batch
    finally:
        engine.close()


def check_rows(name: str, served: tuple[Rows, list[Text]], original: Path) -> None:
    """Holds them against the library's own run of the folder `original`, a text at a time."""
    reference = Reference(name, Use.EMBED, original)
    for rows, text in zip(*served, strict=True):
        expected = reference(text)[OutputKind.TOKENS]
        assert np.abs(rows - expected).max() <= TOLERANCE * max(1.0, np.abs(expected).max())


def changed(folder: Path, target: Path, **others: Any) -> Path:
    """A copy with other settings in config.json; `...` takes one out."""
    settings = json.loads((folder / CONFIG).read_text()) | others
    linked(folder, target, CONFIG)
    (target / CONFIG).write_text(json.dumps({key: value for key, value in settings.items() if value is not ...}))
    return target


def drawn(settings: Mapping[str, Any], draw: Random) -> dict[str, Any]:
    """One key with another value, or without one."""
    key = draw.choice(sorted(settings.keys() - _NOT_DRAWN))
    return {key: draw.choice((..., other_value(draw, settings[key]), other_value(draw, settings[key])))}


def other_value(draw: Random, value: Any) -> Any:
    """Another value than this one: near it, far from it, or of another type."""
    match value:
        case bool():
            others: list[Any] = [not value]
        case int():
            others = [value + 1, value - 1, value * 2, value // 2, 0, -1]
        case float():
            others = [value * 2, value / 2, 0.0]
        case str():
            others = ["relu", "gelu_new", "sliding_attention", "no-such-thing", ""]
        case list():
            others = [value[::-1], value[:-1], [], [*value, *value]]
        case Mapping():
            others = [{}, *({**value, key: other_value(draw, inner)} for key, inner in value.items())]
        case _:
            others = [1, True, 0.5]
    return draw.choice([*(other for other in others if other != value), "words", [1], {"a": 1}])

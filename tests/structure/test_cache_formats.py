"""Code that entries in the cache depend on is not changed without a thought about their format."""

from pathlib import Path

import pytest

from tests.structure.cache_formats import COMMAND, KINDS, found, recorded, sum_of
from tests.structure.sources import Source

QUESTION = """The code that makes a {name} has changed. Would an entry from before have other rows, another graph or
another layout? Then raise {kind.constant} in engine/{kind.numbered_in}. Either way, record the sum anew:
{COMMAND}
Before that, list in tests/structure/cache_formats.py each file to which such code was moved."""
CODE = """
import torch
from engine.store import fingerprint
from engine.rows.with_numpy import mean as mean_of

LIMIT = 3


def rows(ids):
    return mean_of(torch.tensor(ids)) if fingerprint.whole(ids) else LIMIT
"""
# The same in other words: divided, merged, moved, with other docstrings and comments.
ALIKE = {
    "a comment": [CODE + "# changed\n"],
    "a docstring": ['"""Changed."""' + CODE.replace("(ids):\n", '(ids):\n    """Changed."""\n')],
    "lines": [CODE.replace("whole(ids)", "whole(\n        ids\n    )")],
    "two files": ["LIMIT = 3", CODE.replace("LIMIT = 3", "")],
    "twice": ["LIMIT = 3", CODE],
    "another order": [CODE.replace("LIMIT = 3", "") + "LIMIT = 3"],
    "a merged module": [CODE.replace("fingerprint.whole", "whole")],
    "another module": [CODE.replace("engine.rows.with_numpy", "engine.rows.pooling")],
    "a name of its own": [CODE.replace("mean as mean_of", "mean").replace("mean_of", "mean")],
    "a format": [CODE + "_FORMAT = 2"],
}
OTHER = {
    "a number": CODE.replace("LIMIT = 3", "LIMIT = 4"),
    "a name": CODE.replace("fingerprint.whole", "fingerprint.sampled"),
    "another function of ours": CODE.replace("import mean as", "import last as"),
    "another library": CODE.replace("import torch", "import numpy as torch"),
    "a string that is used": CODE.replace("else LIMIT", "else 'LIMIT'"),
    "a default": CODE.replace("rows(ids)", "rows(ids=None)"),
    "a format of something else": CODE + "_FORMAT = '<I'",
    "a decorator": CODE.replace("def rows", "@torch.no_grad\ndef rows"),
    "nothing": "",
}


def of(*texts: str) -> str:
    return sum_of([Source(Path(f"engine/{number}.py"), text) for number, text in enumerate(texts)])


@pytest.mark.parametrize("name", KINDS)
def test_a_change_of_the_code_asks_for_the_format(name: str) -> None:
    assert found(KINDS[name]) == recorded()[name], QUESTION.format(name=name, kind=KINDS[name], COMMAND=COMMAND)


def test_nothing_else_is_recorded() -> None:
    assert recorded().keys() == KINDS.keys()


@pytest.mark.parametrize("texts", ALIKE.values(), ids=ALIKE)
def test_what_only_looks_different_has_the_same_sum(texts: list[str]) -> None:
    assert of(*texts) == of(CODE)


@pytest.mark.parametrize("text", OTHER.values(), ids=OTHER)
def test_what_is_different_has_another_sum(text: str) -> None:
    assert of(text) != of(CODE)

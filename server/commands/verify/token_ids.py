"""Whether a library makes the token ids that are made here, and if it does not, why. Its rows are then of ours.

transformers 5 passes over flags and code that models were trained with (tokenizer_pool.files.special_tokens). Other ids
for that reason are named and pass; other ids for any other reason do not.
"""

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from server.commands.verify.inputs import Inputs
from server.supervisor.planning.model_plan import ModelPlan
from tokenizer_pool.files.loading import load
from tokenizer_pool.files.special_tokens import ends

_MAX_IDS = 12  # that are shown of a text


@dataclass(frozen=True, slots=True)
class HeldIds:
    """How the library's ids compare with ours."""

    in_words: str
    passed: bool = True


NOT_HELD = HeldIds("not compared by themselves")


def hold(tokenizer: Any, plan: ModelPlan, asked: Inputs) -> HeldIds:
    """Compare what the library's `tokenizer` makes of the texts with `asked`. If it differs, it is changed to ours."""
    if not hasattr(tokenizer, "backend_tokenizer"):  # a table's, or a Router's
        return NOT_HELD
    ours = _lists(asked)
    theirs = _ids(tokenizer, plan, asked)
    if theirs == ours:
        return HeldIds("the same")
    folder = plan.folder.path / plan.folder.tokenizer_folder
    backend = load(folder, do_lower_case=plan.folder.do_lower_case)
    around = ends(folder)
    if around is not None:
        tokenizer.backend_tokenizer.post_processor = backend.post_processor
        if _ids(tokenizer, plan, asked) == ours:
            version = importlib.metadata.version("transformers")
            return HeldIds(
                f"transformers {version} passes over this: {around} ({around.source}); its rows are of the ids here"
            )
    tokenizer._tokenizer = backend
    return HeldIds(f"other ids: {_first_difference(ours, theirs)}; its rows are of the ids here", passed=False)


def _ids(tokenizer: Any, plan: ModelPlan, asked: Inputs) -> list[list[int]]:
    """The library's, one text or pair at a time."""
    second: Sequence[str | None] = asked.pair_texts or [None] * len(asked.texts)
    return [
        list(
            tokenizer(plan.default_prompt + text, pair, truncation=True, max_length=plan.folder.max_seqlen)["input_ids"]
        )
        for text, pair in zip(asked.texts, second, strict=True)
    ]


def _lists(asked: Inputs) -> list[list[int]]:
    return [ids.tolist() for ids in np.split(asked.tokens.token_ids, asked.tokens.offsets[1:-1])]


def _first_difference(ours: list[list[int]], theirs: list[list[int]]) -> str:
    others = [number for number, (mine, its) in enumerate(zip(ours, theirs, strict=True)) if mine != its]
    mine, its = ours[others[0]], theirs[others[0]]
    shared = next((at for at, (one, other) in enumerate(zip(mine, its, strict=False)) if one != other), len(mine))
    start = max(0, min(shared, len(mine) - 1, len(its) - 1) - 2)
    here, there = mine[start : start + _MAX_IDS], its[start : start + _MAX_IDS]
    found = f"from token {start} on it has {there}, not {here}"
    return f"{len(others)} of {len(ours)} texts differ; of the first of them, text {others[0]}, {found}"

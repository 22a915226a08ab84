"""Whether a library makes the token ids that are made here, and if it does not, why. Its rows are then of ours.

transformers 5 passes over flags and code that models were trained with (tokenizer_pool.files.special_tokens), and over
what a tokenizer.json of transformers 4 says (tokenizer_pool.files.loading). Other ids for these reasons are named and
pass; other ids for any other reason do not.
"""

import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers

from server.commands.verify.inputs import Inputs
from server.supervisor.planning.model_plan import ModelPlan
from tokenizer_pool.files.config_files import is_of_transformers_5, read_config
from tokenizer_pool.files.loading import load, prepend_lowercase
from tokenizer_pool.files.special_tokens import ends

_PARTS = ("normalizer", "pre_tokenizer", "model", "post_processor")  # of tokenizer.json
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
    version = f"transformers {importlib.metadata.version('transformers')}"
    known = []
    if _gives_types(tokenizer, plan, asked):
        known.append(f"{version} leaves out the types of tokens, which the class of transformers 4 made")
    if theirs == ours:
        return _named(["the same ids", *known]) if known else HeldIds("the same")
    folder = plan.folder.path / plan.folder.tokenizer_folder
    around = ends(folder)
    backend = load(folder, do_lower_case=plan.folder.do_lower_case)
    if around is not None:
        tokenizer.backend_tokenizer.post_processor = backend.post_processor
        known.append(f"{version} passes over this: {around} ({around.source})")
        if _ids(tokenizer, plan, asked) == ours:
            return _named(known)
    if not is_of_transformers_5(read_config(folder / "tokenizer_config.json")):
        plain = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        if plan.folder.do_lower_case:
            prepend_lowercase(plain)
        if around is not None:
            plain.post_processor = backend.post_processor
        parts = _made_equal(tokenizer.backend_tokenizer, plain)
        saved_by = read_config(plan.folder.weights_folder / "config.json").get("transformers_version", "none")
        known.append(
            f"{version} has another {' and another '.join(parts)} than tokenizer.json, which is taken as it stands: "
            f"transformers 5 did not save it (transformers_version in config.json: {saved_by})"
        )
        if _ids(tokenizer, plan, asked) == ours:
            return _named(known)
    tokenizer._tokenizer = backend
    return HeldIds(f"other ids: {_first_difference(ours, theirs)}; its rows are of the ids here", passed=False)


def _gives_types(tokenizer: Any, plan: ModelPlan, asked: Inputs) -> bool:
    """Whether the library now makes types of tokens for its model, and would not have."""
    has_table = read_config(plan.folder.weights_folder / "config.json").get("type_vocab_size", 0) > 1
    has_types = bool(asked.pair_texts) and asked.tokens.token_type_ids is not None
    if not has_types or not has_table or "token_type_ids" in tokenizer.model_input_names:
        return False
    tokenizer.model_input_names = [*tokenizer.model_input_names, "token_type_ids"]
    return True


def _named(known: Sequence[str]) -> HeldIds:
    return HeldIds("; ".join([*known, "its rows are of the ids here"]))


def _made_equal(backend: tokenizers.Tokenizer, plain: tokenizers.Tokenizer) -> list[str]:
    """Take those parts that differ from `plain`, whose names are returned."""
    has, says = json.loads(backend.to_str()), json.loads(plain.to_str())
    parts = [part for part in _PARTS if has[part] != says[part]]
    for part in parts:
        setattr(backend, part, getattr(plain, part))
    return parts


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

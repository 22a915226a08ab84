"""How a sequence is given."""

from typing import Any, TypedDict


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]


def prompt_inputs(given: Any) -> list[int]:
    """The ids of one sequence. Raises TypeError for what is none."""
    ids = given["prompt_token_ids"] if isinstance(given, dict) else given
    if not isinstance(ids, list) or not all(type(each) is int for each in ids):
        raise TypeError(f"Expected prompt_token_ids, got {type(given)}")
    return ids

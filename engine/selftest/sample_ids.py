"""Makes the token ids that self-tests and warm-ups run. Knows the model's folder, no engine."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.machine.failures import one_line
from engine.model.detection.vocabulary import USUAL
from engine.model.json_files import Json, read_optional
from engine.model.model_folder import ModelFolder
from engine.types import EngineLimits, ModelError

Sequences = list[NDArray[np.int32]]  # [S] each

_NUM_SPECIAL = 4  # the first ids are often padding and markers
_MAX_OTHERS = 32  # added tokens without a role
_MAX_ROLES = 64
TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")  # name the tokens that have a role


def arbitrary(folder: ModelFolder, seqlens: Iterable[int]) -> Sequences:
    """Arbitrary ids, the same at each start. Sequences are cut to the model's limit."""
    numbers = np.random.default_rng(seed=0)
    first = min(_NUM_SPECIAL, folder.vocab_size - 1)
    return [numbers.integers(first, folder.vocab_size, min(seqlen, folder.max_seqlen), np.int32) for seqlen in seqlens]


def special(folder: ModelFolder) -> tuple[list[int], list[int]]:
    """Ids that a class or a tokenizer may treat in its own way, ascending: the first four with those that have a role
    (padding, mask, …), and some of the other added tokens. Raises ModelError if a file can't be read."""
    where = folder.weights_folder
    added = _added(read_optional(where / "tokenizer.json"))
    named = {text for file in TOKENIZER_FILES for text in _named(read_optional(where / file))}
    named.update(*USUAL.values())
    found = {*range(_NUM_SPECIAL), *_in_config(folder.config), *(added[name] for name in named & added.keys())}
    roles = sorted(token_id for token_id in found if 0 <= token_id < folder.vocab_size)[:_MAX_ROLES]
    others = sorted(token_id for token_id in set(added.values()) - found if 0 <= token_id < folder.vocab_size)
    return roles, others[:: max(1, -(-len(others) // _MAX_OTHERS))]


def _in_config(config: Json) -> Iterator[int]:
    """Ids that config.json names, also in the part of a text model."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _in_config(value)
        elif name.endswith(("_token_id", "_token_ids", "_token_index")):
            yield from (each for each in (value if isinstance(value, list) else [value]) if type(each) is int)


def _named(config: Json) -> Iterator[str]:
    """The texts of tokens that have a role, such as mask_token."""
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            yield text


def _added(tokenizer: Json) -> dict[str, int]:
    """The added tokens' ids."""
    tokens: Any = tokenizer.get("added_tokens")
    entries = tokens if isinstance(tokens, list) else []
    return {
        entry["content"]: entry["id"]
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and type(entry.get("id")) is int
    }


def largest_batch(folder: ModelFolder, limits: EngineLimits) -> Sequences:
    """Arbitrary ids of as many tokens as a batch may have, in sequences of `limits.max_seqlen`."""
    num_seqs, rest = divmod(limits.max_num_tokens, limits.max_seqlen)
    seqlens = [limits.max_seqlen] * num_seqs + [rest] * (rest > 0)
    return arbitrary(folder, seqlens[: limits.max_num_seqs])


def of_texts(folder: ModelFolder, texts: Sequence[str], *, max_seqlen: int) -> Sequences:
    """Each text's ids with special tokens, cut to `max_seqlen` and to the model's limit. If the folder has no
    tokenizer: arbitrary ids of similar lengths.

    Raises ModelError if the tokenizer can't be read.
    """
    file = folder.weights_folder / "tokenizer.json"
    if not file.is_file():
        return arbitrary(folder, (min(len(text.split()) + 2, max_seqlen) for text in texts))
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
        tokenizer.no_padding()
        tokenizer.enable_truncation(min(folder.max_seqlen, max_seqlen))
        encoded = tokenizer.encode_batch([text.lower() if folder.do_lower_case else text for text in texts])
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{file} can't be used: {one_line(error)}") from error
    return [np.array(encoding.ids, np.int32) for encoding in encoded]

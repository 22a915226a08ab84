"""How many tokens a text needs to show a wrong window or wrong frequencies: what config.json says of both."""

import re
from collections.abc import Iterator

from engine.model.json_files import Json, number_in, object_in
from engine.types import ModelError

_MODERNBERT_WINDOW = 128  # the default of local_attention (transformers, configuration_modernbert.py)
_WINDOW = re.compile(r"(window|window_size|attention_chunk_size)$")  # keys: sliding_window, attention_window_size, …
_SPARSE, _BLOCK, _NUM_RANDOM = ("big_bird", "bigbird_pegasus"), 64, 3  # and defaults of block_size, num_random_blocks
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")  # keys of how many the architecture has
LONG_ROPE = "longrope"
_LENGTH_DEPENDENT = ("dynamic", LONG_ROPE)  # kinds of rope whose frequencies depend on the length
_ORIGINAL = "original_max_position_embeddings"
_DEFAULT_ORIGINAL = {"phi3": 4096}  # of its class, where config.json does not say it outside of rope_parameters


def telling_lengths(config: Json, max_seqlen: int) -> tuple[int, ...]:
    """Ascending; none if nothing changes within max_seqlen tokens. config: ModelFolder.config. Raises ModelError.

    A quarter beyond a window, so that more than a few tokens lose sight of the first ones.
    """
    windows = (window for window in _windows(config) if window < max_seqlen)
    lengths = {window + window // 4 + 2 for window in windows} | _of_rope(config)
    sparse_from = _num_dense(config)
    lengths |= {sparse_from + 1} if sparse_from is not None and sparse_from < max_seqlen else set()
    return tuple(sorted({min(length, max_seqlen) for length in lengths}))


def _windows(config: Json) -> Iterator[int]:
    """A token sees others up to about this many tokens away in some layers."""
    if config.get("model_type") == "modernbert":
        yield (number_in(config, "local_attention") or _MODERNBERT_WINDOW) // 2  # to either side
        return
    kinds = config.get("layer_types")
    has_none = isinstance(kinds, list) and not {*map(str, kinds)} - {"full_attention"}
    if has_none or config.get("use_sliding_window") is False:
        return
    for key in filter(_WINDOW.search, config):
        window = config[key]
        if type(window) is int and window > 0:
            yield window // 2 + 1 if config.get("use_bidirectional_attention") else window


def _num_dense(config: Json) -> int | None:
    """The tokens up to which BigBird's attention is not sparse; None = it never is."""
    if config.get("model_type") not in _SPARSE or config.get("attention_type") == "original_full":
        return None
    num_random = config.get("num_random_blocks", _NUM_RANDOM)
    return (5 + 2 * num_random) * (number_in(config, "block_size") or _BLOCK) if type(num_random) is int else None


def _of_rope(config: Json) -> set[int]:
    return {length for _, first in lengths_of_rope(config) for length in (first, first + 2)}


def lengths_of_rope(config: Json) -> Iterator[tuple[str, int]]:
    """The kinds of rope whose frequencies depend on the length, of all layers or of each type, and the most tokens that
    have the first frequencies. Raises ModelError where config.json leaves that to the class."""
    whole = object_in(config, "rope_parameters") or object_in(config, "rope_scaling")
    for rope in (whole, *(each for each in whole.values() if isinstance(each, dict))):
        kind = rope.get("rope_type", rope.get("type"))
        if kind in _LENGTH_DEPENDENT:
            originals = _originals(config, rope) if kind == LONG_ROPE else []
            first = min(originals, default=number_in(config, *POSITIONS))
            if first is None:
                raise ModelError(f"rope_type {kind!r} in config.json needs {POSITIONS[0]}, which it has not")
            yield kind, first


def _originals(config: Json, rope: Json) -> list[int]:
    """Inside and outside; which of them counts depends on the class."""
    outside = number_in(config, _ORIGINAL) or _DEFAULT_ORIGINAL.get(str(config.get("model_type")))
    return [length for length in (outside, number_in(rope, _ORIGINAL)) if length is not None]

"""How many tokens a text needs to show a wrong window or wrong frequencies: what config.json says of both."""

import re
from collections.abc import Iterator

from engine.model.json_files import Json, number_in, object_in

_MODERNBERT_WINDOW = 128  # the default of local_attention (transformers, configuration_modernbert.py)
_WINDOW = re.compile(r"(window|window_size|attention_chunk_size)$")  # keys: sliding_window, attention_window_size, …
_SPARSE, _BLOCK, _NUM_RANDOM = ("big_bird", "bigbird_pegasus"), 64, 3  # and defaults of block_size, num_random_blocks
_LENGTH_DEPENDENT = ("dynamic", "longrope")  # kinds of rope whose frequencies depend on the length


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
    rope = object_in(config, "rope_parameters") or object_in(config, "rope_scaling")
    if rope.get("rope_type", rope.get("type")) not in _LENGTH_DEPENDENT:
        return set()
    first = number_in({**config, **rope}, "original_max_position_embeddings", "max_position_embeddings")
    return set() if first is None else {first, first + 2}

"""Refuses sequences that are too long for the memory there is, where an executor holds all attention scores at once,
or those of the whole vocabulary for each token.
"""

import os

from engine.machine import host
from engine.model.json_files import number_in, object_in, read_object
from engine.model.model_folder import ModelFolder
from engine.types import ModelError

_SHARE = 0.5  # of the memory; the rest is for weights, other values, and the other processes
_NUM_VOCABULARY_COPIES = 2  # scores, and scores without those of the padding
_USUAL_HEAD = 64  # numbers, where config.json does not say how many heads there are


def check_length(
    folder: ModelFolder,
    *,
    num_copies: float,
    num_threads: int,
    max_num_tokens: int,
    has_vocabulary_scores: bool = False,
) -> None:
    """Raises ModelError, with a length that fits, where the longest sequences would not.

    A sequence of S tokens takes `num_copies` float32 arrays [num_heads, S, S], and _NUM_VOCABULARY_COPIES of
    [S, vocab_size] where its tokens get scores of the vocabulary. As many are computed at a time as there
    are streams, and as there are in `max_num_tokens`: the tokens that the engine holds. Engines side by side share the
    memory as they share the cores.
    """
    cores = os.cpu_count() or 1
    room = _SHARE * host.memory() * min(1, num_threads / cores)
    bytes_of_square = 4 * num_copies * _num_heads(folder)
    bytes_of_token = 4 * _NUM_VOCABULARY_COPIES * folder.vocab_size * has_vocabulary_scores

    def needed(seqlen: int) -> float:
        return (bytes_of_square * seqlen**2 + bytes_of_token * seqlen) * min(
            num_threads, max(1, max_num_tokens // seqlen)
        )

    if needed(folder.max_seqlen) > room:
        fitting = next((seqlen for seqlen in range(folder.max_seqlen, 1, -1) if needed(seqlen) <= room), 1)
        raise ModelError(
            f"sequences of {folder.max_seqlen} tokens could take {needed(folder.max_seqlen) / 1e9:.1f} GB of memory, "
            f"and {room / 1e9:.1f} GB are for them; --max-input-length {fitting} fits"
        )


def _num_heads(folder: ModelFolder) -> int:
    config = read_object(folder.path / "config.json")
    config = {**object_in(config, "text_config"), **config}
    return number_in(config, "num_attention_heads", "n_heads", "n_head", "num_heads") or max(
        1, folder.hidden_size // _USUAL_HEAD
    )

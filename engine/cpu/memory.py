"""How many streams may compute the longest sequences at the same time, so that their values fit into memory.

OpenVINO keeps for each stream what its longest sequence took, so a limit on what is computed at the same time would not
hold. Only some streams compute long sequences, where memory is short.
"""

import logging
from collections.abc import Callable

from engine.machine import cores, host
from engine.model.json_files import number_in
from engine.model.model_folder import ModelFolder
from engine.types import ModelError

logger = logging.getLogger("embedline.engine")

_SHARE = 0.5  # of the memory; the rest is for weights, short sequences and other processes
# Numbers that a stream keeps of a token, for each hidden size: 25 to 27 were measured with BERT of 384 to 1,024 numbers
# and up to 8,192 tokens, in float32, and 17 in bfloat16.
_NUM_HIDDEN_COPIES = 28
_NUM_VOCABULARY_COPIES = 2  # the scores, and the scores with padding masked
# These add a mask with a number for each score: engine.transformers.distance_bias.
_WITH_BIASES = frozenset(("jina_bert", "mt5", "t5"))
_NUM_BIAS_COPIES = 2  # by head and distance, and with padding masked
_USUAL_HEAD = 64  # numbers a head, if config.json does not give the number of heads


def num_long_streams(folder: ModelFolder, *, num_threads: int, has_vocabulary_scores: bool = False) -> int:
    """Of `num_threads` streams, those for which the longest sequences fit into memory; at least one.

    A sequence of S tokens takes float32 arrays: _NUM_HIDDEN_COPIES of [S, hidden_size], and its scores:
    _NUM_BIAS_COPIES of [num_heads, S, S] if they get biases by position, and _NUM_VOCABULARY_COPIES of [S, vocab_size]
    if its tokens get scores of the vocabulary. Several engines share the memory in proportion to their cores. Raises
    ModelError if the scores of a single sequence do not fit; the message names a length of which they do.
    """
    num_copies = _NUM_BIAS_COPIES * (folder.architecture in _WITH_BIASES)
    room = _SHARE * host.memory() * min(1, num_threads / cores.usable())
    bytes_of_square = 4 * num_copies * _num_heads(folder)
    bytes_of_vocabulary = 4 * _NUM_VOCABULARY_COPIES * folder.vocab_size * has_vocabulary_scores

    def scores(seqlen: int) -> float:
        return bytes_of_square * seqlen**2 + bytes_of_vocabulary * seqlen

    def all_of(seqlen: int) -> float:
        return scores(seqlen) + 4 * _NUM_HIDDEN_COPIES * folder.hidden_size * seqlen

    longest = folder.max_seqlen
    if scores(longest) > room:
        raise ModelError(f"{_could_take(longest, scores(longest), room)}; {_fitting(longest, scores, room)}")
    if all_of(longest) > room:
        logger.warning("%s; %s", _could_take(longest, all_of(longest), room), _fitting(longest, all_of, room))
    return max(1, min(num_threads, int(room / all_of(longest))))


def _could_take(seqlen: int, num_bytes: float, room: float) -> str:
    taken, left = f"{num_bytes / 1e9:.1f} GB", f"{room / 1e9:.1f} GB"
    return f"a sequence of {seqlen} tokens could take {taken} of memory, and {left} are for it"


def _fitting(longest: int, needed: Callable[[int], float], room: float) -> str:
    fitting = next((seqlen for seqlen in range(longest, 1, -1) if needed(seqlen) <= room), 1)
    return f"--max-input-length {fitting} fits"


def _num_heads(folder: ModelFolder) -> int:
    return number_in(folder.config, "num_attention_heads", "n_heads", "n_head", "num_heads") or max(
        1, folder.hidden_size // _USUAL_HEAD
    )

"""How many streams may compute the longest sequences at the same time, so that their values fit into memory.

OpenVINO keeps for each stream what its longest sequence took, so a limit on what is computed at the same time would not
hold. Only some streams compute long sequences, where memory is short.
"""

from engine.machine import cores, host
from engine.model.json_files import number_in
from engine.model.model_folder import ModelFolder
from engine.types import ModelError

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
    """Of `num_threads` streams, those for which the longest sequences fit into memory: at least one.

    A sequence of S tokens takes float32 arrays: _NUM_HIDDEN_COPIES of [S, hidden_size], _NUM_BIAS_COPIES of [num_heads,
    S, S] if scores get biases by position, and _NUM_VOCABULARY_COPIES of [S, vocab_size] if its tokens get scores of
    the vocabulary. Several engines share the memory in proportion to their cores. Raises ModelError if not even one
    fits; the message names a length that does.
    """
    num_copies = _NUM_BIAS_COPIES * (folder.architecture in _WITH_BIASES)
    room = _SHARE * host.memory() * min(1, num_threads / cores.usable())
    bytes_of_square = 4 * num_copies * _num_heads(folder)
    bytes_of_token = 4 * (
        _NUM_HIDDEN_COPIES * folder.hidden_size + _NUM_VOCABULARY_COPIES * folder.vocab_size * has_vocabulary_scores
    )

    def needed(seqlen: int) -> float:
        return bytes_of_square * seqlen**2 + bytes_of_token * seqlen

    if needed(folder.max_seqlen) > room:
        fitting = next((seqlen for seqlen in range(folder.max_seqlen, 1, -1) if needed(seqlen) <= room), 1)
        raise ModelError(
            f"a sequence of {folder.max_seqlen} tokens could take {needed(folder.max_seqlen) / 1e9:.1f} GB of memory, "
            f"and {room / 1e9:.1f} GB are for it; --max-input-length {fitting} fits"
        )
    return min(num_threads, int(room / needed(folder.max_seqlen)))


def _num_heads(folder: ModelFolder) -> int:
    return number_in(folder.config, "num_attention_heads", "n_heads", "n_head", "num_heads") or max(
        1, folder.hidden_size // _USUAL_HEAD
    )

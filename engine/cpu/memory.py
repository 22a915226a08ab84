"""Refuses a sequence length that needs too much memory: some models add a bias to each attention score, and some heads
score the whole vocabulary for each token.
"""

from engine.machine import cores, host
from engine.model.json_files import number_in
from engine.model.model_folder import ModelFolder
from engine.types import ModelError

_SHARE = 0.5  # of the memory; the rest is for weights, other values and other processes
_NUM_VOCABULARY_COPIES = 2  # the scores, and the scores with padding masked
# These add a mask with a number for each score: engine.transformers.distance_bias.
_WITH_BIASES = frozenset(("jina_bert", "mt5", "t5"))
_NUM_BIAS_COPIES = 2  # by head and distance, and with padding masked
_USUAL_HEAD = 64  # numbers a head, if config.json does not give the number of heads


def check_length(
    folder: ModelFolder,
    *,
    num_threads: int,
    max_num_tokens: int,
    has_vocabulary_scores: bool = False,
) -> None:
    """Raises ModelError if the longest sequences do not fit into memory. The message names a length that fits.

    A sequence of S tokens takes _NUM_BIAS_COPIES float32 arrays [num_heads, S, S] if scores get biases by position, and
    _NUM_VOCABULARY_COPIES of [S, vocab_size] if its tokens get scores of the vocabulary. At most `num_threads`
    sequences are computed at a time, and no more than fit into `max_num_tokens`, the tokens in the engine. Several
    engines share the memory in proportion to their cores.
    """
    num_copies = _NUM_BIAS_COPIES * (folder.architecture in _WITH_BIASES)
    room = _SHARE * host.memory() * min(1, num_threads / cores.usable())
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
    return number_in(folder.config, "num_attention_heads", "n_heads", "n_head", "num_heads") or max(
        1, folder.hidden_size // _USUAL_HEAD
    )

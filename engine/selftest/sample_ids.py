"""Makes the token ids that self-tests and warm-ups run. Knows the model's folder, no engine."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.machine.failures import one_line
from engine.model.model_folder import ModelFolder
from engine.types import EngineLimits, ModelError

Sequences = list[NDArray[np.int32]]  # [S] each

_NUM_SPECIAL = 4  # the first ids are often padding and markers


def arbitrary(folder: ModelFolder, seqlens: Iterable[int]) -> Sequences:
    """Arbitrary ids, the same at each start. Sequences are cut to the model's limit."""
    numbers = np.random.default_rng(seed=0)
    first = min(_NUM_SPECIAL, folder.vocab_size - 1)
    return [numbers.integers(first, folder.vocab_size, min(seqlen, folder.max_seqlen), np.int32) for seqlen in seqlens]


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

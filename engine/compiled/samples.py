"""Sequences that a compiled model is tried on. Knows nothing of how it computes."""

import numpy as np
from numpy.typing import NDArray

from engine.compiled.failures import one_line
from engine.compiled.sentences import SENTENCES
from engine.model_folder import ModelFolder
from engine.types import ModelError

Sequences = list[NDArray[np.int32]]  # [S] each

# Equal lengths are there on purpose; the last is longer than ModernBERT's window of 128.
_SEQLENS = (5, 17, 1, 5, 9, 8, 140)
_NUM_SPECIAL = 4  # the first ids are often padding and markers


def arbitrary(folder: ModelFolder, seqlens: tuple[int, ...] = _SEQLENS) -> Sequences:
    """Arbitrary ids, the same at each start."""
    numbers = np.random.default_rng(seed=0)
    first = min(_NUM_SPECIAL, folder.vocab_size - 1)
    return [numbers.integers(first, folder.vocab_size, min(seqlen, folder.max_seqlen), np.int32) for seqlen in seqlens]


def sentences(folder: ModelFolder) -> Sequences:
    """English sentences and paragraphs, where the folder has a tokenizer; else arbitrary ids of like lengths.

    Raises ModelError where the tokenizer can't be read.
    """
    file = folder.path / "tokenizer.json"
    if not file.is_file():
        return arbitrary(folder, tuple(len(text.split()) + 2 for text in SENTENCES))
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
        tokenizer.no_padding()
        tokenizer.enable_truncation(folder.max_seqlen)
        encoded = tokenizer.encode_batch([text.lower() if folder.do_lower_case else text for text in SENTENCES])
    except Exception as error:
        raise ModelError(f"{file} can't be used: {one_line(error)}") from error
    return [np.array(encoding.ids, np.int32) for encoding in encoded]

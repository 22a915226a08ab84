"""Sequences that a compiled model is tried on. Knows nothing of how it computes."""

import numpy as np
from numpy.typing import NDArray

from engine.compiled.failures import one_line
from engine.compiled.sentences import SENTENCES
from engine.model_folder import ModelFolder
from engine.types import ModelError

Sequences = list[NDArray[np.int32]]  # [S] each

_LONGEST = 1024  # tokens; more would take seconds
# Equal lengths are there on purpose; 140 is longer than ModernBERT's window of 128.
_SEQLENS = (5, 17, 1, 5, 9, 8, 140, _LONGEST)
_NUM_SPECIAL = 4  # the first ids are often padding and markers


def arbitrary(folder: ModelFolder, seqlens: tuple[int, ...] = _SEQLENS) -> Sequences:
    """Arbitrary ids, the same at each start."""
    numbers = np.random.default_rng(seed=0)
    first = min(_NUM_SPECIAL, folder.vocab_size - 1)
    return [numbers.integers(first, folder.vocab_size, min(seqlen, folder.max_seqlen), np.int32) for seqlen in seqlens]


def sentences(folder: ModelFolder) -> Sequences:
    """English sentences and paragraphs, and all of them as one text, where the folder has a tokenizer; else arbitrary
    ids of like lengths.

    Raises ModelError where the tokenizer can't be read.
    """
    file = folder.path / "tokenizer.json"
    texts = (*SENTENCES, " ".join(SENTENCES))
    if not file.is_file():
        return arbitrary(folder, tuple(min(len(text.split()) + 2, _LONGEST) for text in texts))
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
        tokenizer.no_padding()
        tokenizer.enable_truncation(min(folder.max_seqlen, _LONGEST))
        encoded = tokenizer.encode_batch([text.lower() if folder.do_lower_case else text for text in texts])
    except Exception as error:
        raise ModelError(f"{file} can't be used: {one_line(error)}") from error
    return [np.array(encoding.ids, np.int32) for encoding in encoded]

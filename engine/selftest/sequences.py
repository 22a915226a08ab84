"""Sequences that a compiled model is tried on. Knows nothing of how it computes."""

import numpy as np
from numpy.typing import NDArray

from engine.model.model_folder import ModelFolder
from engine.selftest import sample_ids
from engine.selftest.sample_ids import Sequences
from engine.selftest.sentences import SENTENCES

_LONGEST = 1024  # tokens; more would take seconds
# Equal lengths are there on purpose; 140 is longer than ModernBERT's window of 128.
_SEQLENS = (5, 17, 1, 5, 9, 8, 140, _LONGEST)


def num_hidden(sequence: NDArray[np.int32]) -> int:
    """Tokens at the end of a sequence that others are not to see, where a model is tried on that: with the first 70 of
    140 left, ModernBERT's window of 64 to either side has none for the last.
    """
    return len(sequence) // 2


def arbitrary(folder: ModelFolder) -> Sequences:
    """Arbitrary ids, the same at each start."""
    return sample_ids.arbitrary(folder, _SEQLENS)


def sentences(folder: ModelFolder) -> Sequences:
    """English sentences and paragraphs, and all of them as one text, where the folder has a tokenizer; else arbitrary
    ids of like lengths.

    Raises ModelError where the tokenizer can't be read.
    """
    return sample_ids.of_texts(folder, (*SENTENCES, " ".join(SENTENCES)), max_seqlen=_LONGEST)

"""Token ids of texts that a model is tried on, made as its tokenizer makes them. Knows nothing of engines."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.model.model_folder import ModelFolder
from engine.types import ModelError

Sequences = list[NDArray[np.int32]]  # [S] each

_NUM_SPECIAL = 4  # the first ids are often padding and markers
_MAX_REASON = 300  # characters; some exceptions hold pages


def arbitrary(folder: ModelFolder, seqlens: Iterable[int]) -> Sequences:
    """Arbitrary ids, the same at each start; no sequence is longer than the model takes."""
    numbers = np.random.default_rng(seed=0)
    first = min(_NUM_SPECIAL, folder.vocab_size - 1)
    return [numbers.integers(first, folder.vocab_size, min(seqlen, folder.max_seqlen), np.int32) for seqlen in seqlens]


def of_texts(folder: ModelFolder, texts: Sequence[str], *, max_seqlen: int) -> Sequences:
    """Each text's ids with special tokens, cut to `max_seqlen` and to what the model takes. Where the folder has no
    tokenizer: arbitrary ids of like lengths.

    Raises ModelError where the tokenizer can't be read.
    """
    file = folder.path / "tokenizer.json"
    if not file.is_file():
        return arbitrary(folder, (min(len(text.split()) + 2, max_seqlen) for text in texts))
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
        tokenizer.no_padding()
        tokenizer.enable_truncation(min(folder.max_seqlen, max_seqlen))
        encoded = tokenizer.encode_batch([text.lower() if folder.do_lower_case else text for text in texts])
    except Exception as error:  # the library raises nothing narrower
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_REASON]
        raise ModelError(f"{file} can't be used: {reason}") from error
    return [np.array(encoding.ids, np.int32) for encoding in encoded]

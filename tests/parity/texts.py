"""Random texts as token ids, in batches that hold what goes wrong most easily."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.types import Batch, OutputKind
from tests.parity.architectures import VOCAB_SIZE
from wire.parts import EXPANSION_TOKEN, PROMPT_TOKEN

SPECIAL_IDS = (0, 1, 2, 3)  # padding, unknown, first and last
_FIRST_ID = 7  # below are padding and markers


@dataclass(frozen=True, slots=True)
class Text:
    """One sequence."""

    ids: tuple[int, ...]
    types: tuple[int, ...] | None = None  # token types, for models that have some
    num_prompt: int = 0  # tokens at the beginning that pooling leaves out
    num_expansion: int = 0  # tokens at the end that no other token sees

    def cut(self, seqlen: int) -> "Text":
        """Its first tokens, for a text without prompt and expansion."""
        return replace(self, ids=self.ids[:seqlen], types=self.types and self.types[:seqlen])

    @property
    def marks(self) -> list[int]:
        """As a batch has them."""
        values = [0] * len(self.ids)
        for place in range(self.num_prompt):
            values[place] += PROMPT_TOKEN
        for place in range(len(self.ids) - self.num_expansion, len(self.ids)):
            values[place] += EXPANSION_TOKEN
        return values


def random_texts(
    numbers: np.random.Generator, max_seqlen: int, *, num_types: int, last_id: int | None = None
) -> list[Text]:
    """One token, as many as there may be, several of the same length, and some of any, in any order.

    last_id: what one of them ends with.
    """
    same = int(numbers.integers(3, max_seqlen))
    seqlens = [1, 1, max_seqlen, same, same, same, *numbers.integers(2, max_seqlen, 4).tolist()]
    texts = [random_text(numbers, seqlen, num_types=num_types) for seqlen in numbers.permutation(seqlens)]
    if last_id is not None:
        longest = texts.index(max(texts, key=lambda text: len(text.ids)))
        texts[longest] = replace(texts[longest], ids=(*texts[longest].ids[:-1], last_id))
    return texts


def random_text(numbers: np.random.Generator, seqlen: int, *, num_types: int = 0) -> Text:
    """One of this length; of types, a first and a second part as pairs have them."""
    ids = tuple(numbers.integers(_FIRST_ID, VOCAB_SIZE, seqlen).tolist())
    if num_types < 2:
        return Text(ids)
    num_first = int(numbers.integers(0, seqlen + 1))
    return Text(ids, (0,) * num_first + (1,) * (seqlen - num_first))


def with_prompts(numbers: np.random.Generator, texts: Iterable[Text]) -> list[Text]:
    """All that have two tokens or more begin with a prompt, at least one token of them being their own."""
    return [replace(text, num_prompt=int(numbers.integers(0, len(text.ids)))) for text in texts]


def with_expansion(numbers: np.random.Generator, texts: Iterable[Text]) -> list[Text]:
    """The same with tokens at the end that no other sees."""
    return [replace(text, num_expansion=int(numbers.integers(0, len(text.ids)))) for text in texts]


def packed(texts: Sequence[Text], outputs: OutputKind) -> Batch:
    """All of them in one batch."""
    ids = np.array(list(itertools.chain.from_iterable(text.ids for text in texts)), np.int32)
    cu_seqlens = np.cumsum([0, *(len(text.ids) for text in texts)]).astype(np.int32)
    types = np.array([kind for text in texts for kind in text.types or (0,) * len(text.ids)], np.int32)
    marks = np.array(list(itertools.chain.from_iterable(text.marks for text in texts)), np.uint8)
    return Batch("m", outputs, ids, cu_seqlens, types if types.any() else None, marks if marks.any() else None)

"""How the tokens of two texts become one sequence: joined as a tokenizer's post-processor says, or in a generative
reranker's template.

The tokenizer pool makes all pairs so, and engines those on which they try a model. Knows neither requests nor what a
model makes of a pair. Tokenizers are the library's; who has one has imported it.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

PLACES = ("{document}", "{query}", "{instruction}")  # in the order in which parts that hold them are cut
_TEXTS = PLACES[:2]
_SPLIT = re.compile("|".join(f"({re.escape(place)})" for place in PLACES))
_FILLERS = ("0", "1 2 3 4")  # end in different tokens

# Calls a function of the library with all texts. The pool's guards against its panics.
EncodeEach = Callable[
    [Callable[[Sequence[str]], "list[tokenizers.Encoding]"], Sequence[str]], "list[tokenizers.Encoding]"
]


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens of a pair that follow each other and have the same type."""

    sequence: int | None  # 0 = the tokens of the first text, 1 = of the second; None = special ones
    ids: list[int]  # the special ones
    type_id: int


class JoinedPairs:
    """How one tokenizer's post-processor joins two texts, with the types that transformers gives their tokens."""

    def __init__(self, backend: "tokenizers.Tokenizer", *, has_types: bool) -> None:
        """`has_types` says whether the model takes types of tokens."""
        self._runs = _runs(backend)
        self.num_special = sum(len(run.ids) for run in self._runs)
        self.has_types = has_types and any(run.type_id for run in self._runs)

    def append(self, pair: tuple[list[int], list[int]], token_ids: list[int], type_ids: list[int]) -> None:
        """Append the sequence of two texts' ids to `token_ids`, and its types where it has some to `type_ids`."""
        for run in self._runs:
            ids = run.ids if run.sequence is None else pair[run.sequence]
            token_ids += ids
            if self.has_types:
                type_ids += [run.type_id] * len(ids)


def cut(pair: tuple[list[int], list[int]], room: int, *, keeps_end: bool) -> tuple[list[int], list[int]]:
    """A pair of ids that is too long, cut to `room` ids as the library's longest_first does: a text that has no more
    than half of the room stays whole. keeps_end: the first ids go, not the last."""
    first, second = pair
    shorter = min(len(first), len(second))
    if 2 * shorter <= room:
        longer = room - shorter
    else:
        shorter, longer = room // 2, room - room // 2
    lengths = (shorter, longer) if len(first) <= len(second) else (longer, shorter)
    return _end(first, lengths[0], keeps_end), _end(second, lengths[1], keeps_end)


def _end(ids: list[int], length: int, keeps_end: bool) -> list[int]:
    return ids[len(ids) - length :] if keeps_end else ids[:length]


def _runs(backend: "tokenizers.Tokenizer") -> list[_Run]:
    """The runs that a pair is made of, read off a pair of one token each."""
    import tokenizers

    probe = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    if backend.post_processor is not None:
        probe.post_processor = backend.post_processor
    pair = probe.encode("a", "b")
    columns = zip(pair.sequence_ids, pair.type_ids, pair.ids, strict=True)
    return [
        _Run(sequence, [token_id for _, _, token_id in run] if sequence is None else [], type_id)
        for (sequence, type_id), run in groupby(columns, key=lambda column: column[:2])
    ]


@dataclass(frozen=True, slots=True)
class ChatPairs:
    """How sentence-transformers asks a reranker by its chat template, with messages of the roles query and document."""

    is_flat: bool  # whether what a message says is a text, or a list of objects with one
    options: str = "{}"  # what the template gets beside the messages, as JSON


@dataclass(frozen=True, slots=True)
class Filled:
    """The tokens of a part, filled in."""

    ids: list[int]
    head: int  # tokens before those of the document; all where it is cut at its end
    tail: tuple[int, ...] = ()  # those that stand at the end where it is cut


class _Part:
    """One part of the template."""

    def __init__(self, backend: "tokenizers.Tokenizer", text: str, encode_each: EncodeEach) -> None:
        self._backend = backend
        self._encode_each = encode_each
        self._pieces = [piece for piece in _SPLIT.split(text) if piece]  # places and the text between them
        self.places = [place for place in PLACES if place in self._pieces]
        fixed = ["", *(piece for piece in self._pieces if piece not in PLACES)]
        hidden, spelt = ([encoding.ids for encoding in self._encode(fixed, hides)] for hides in (True, False))
        self.hides_specials = bool(self.places) and hidden == spelt  # in the texts of users
        self.fixed = None if self.places else _whole(self._encode([text], False)[0])
        self.tail = self._tail(_FILLERS) if "{document}" in self.places else ()
        texts = [at for at, piece in enumerate(self._pieces) if piece in _TEXTS]
        is_last = "{instruction}" in self._pieces[max(texts, default=0) :]  # behind both texts
        self._ends_with_instruction = is_last and "{document}" in self.places
        self._latest: tuple[str, tuple[int, ...]] | None = None  # an instruction, and its tail

    def fill(self, fillings: Sequence[dict[str, str]], *, keeps_end: bool) -> list[Filled]:
        """The tokens of this part for each pair. All have the same instruction."""
        if self.fixed is not None:
            return [self.fixed] * len(fillings)
        texts = self._texts(fillings)
        tail = self._tail_with(fillings[0]["{instruction}"])
        if not keeps_end or "{document}" not in self.places:
            return [_whole(encoding, tail) for encoding in self._encode(texts, self.hides_specials)]
        encodings = self._encode(texts, self.hides_specials, with_offsets=True)
        starts = map(self._start, fillings)
        pairs = zip(encodings, starts, strict=True)  # the first tokens, up to so many characters, stay
        return [Filled(one.ids, sum(stop <= start for _, stop in one.offsets), tail) for one, start in pairs]

    def _texts(self, fillings: Sequence[dict[str, str]]) -> list[str]:
        return ["".join(filling.get(piece, piece) for piece in self._pieces) for filling in fillings]

    def _tail_with(self, instruction: str) -> tuple[int, ...]:
        """The tail, with the instruction where it stands behind both texts, as in sentence-transformers."""
        if not self._ends_with_instruction:
            return self.tail
        if self._latest is None or self._latest[0] != instruction:
            self._latest = instruction, self._tail((instruction, instruction))
        return self._latest[1]

    def _tail(self, instructions: tuple[str, str]) -> tuple[int, ...]:
        """The tokens that end the part whatever the two texts are, and with either of these instructions."""
        last = self._pieces[-1]
        if last in _TEXTS or (last in PLACES and instructions == _FILLERS):
            return ()
        fillers = zip(_FILLERS, instructions, strict=True)
        texts = self._texts([{**dict.fromkeys(_TEXTS, filler), "{instruction}": own} for filler, own in fillers])
        first, second = (encoding.ids for encoding in self._encode(texts, self.hides_specials))
        pairs = zip(reversed(first), reversed(second), strict=False)
        num_shared = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        return tuple(first[len(first) - num_shared :]) if num_shared < min(len(first), len(second)) else ()

    def _start(self, filling: dict[str, str]) -> int:
        """Characters before the document."""
        before = self._pieces[: self._pieces.index("{document}")]
        return sum(len(filling.get(piece, piece)) for piece in before)

    def _encode(
        self, texts: Sequence[str], hides_specials: bool, *, with_offsets: bool = False
    ) -> "list[tokenizers.Encoding]":
        backend, as_loaded = self._backend, self._backend.encode_special_tokens
        encode = backend.encode_batch if with_offsets else backend.encode_batch_fast
        backend.no_truncation()
        backend.encode_special_tokens = hides_specials or as_loaded
        try:
            return self._encode_each(partial(encode, add_special_tokens=False), texts)
        finally:
            backend.encode_special_tokens = as_loaded


class FilledTemplate:
    """The template of one model over its tokenizer, filled in part by part.

    The reference tokenizes each part by itself, and so does this. A text of a user never becomes a special token, which
    would let a document end the question and answer it; the ids of all other texts are those of the reference. Only
    where the fixed text beside it in its part spells out a special token is the library told to look for them in all of
    it.
    """

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        parts: Sequence[str],
        *,
        encode_each: EncodeEach,
        stripped: Collection[str] = (),
    ) -> None:
        """parts: see engine.model.tasks.PairTemplate. stripped: the places whose texts lose the spaces around them."""
        self._parts = [_Part(backend, text, encode_each) for text in parts]
        self._stripped = stripped
        self.num_fixed = sum(len(part.fixed.ids if part.fixed else part.tail) for part in self._parts)
        self.hides_specials = all(part.hides_specials for part in self._parts if part.places)
        self.takes_instruction = any("{instruction}" in part.places for part in self._parts)
        by_rank = [(PLACES.index(part.places[0]), at) for at, part in enumerate(self._parts) if part.places]
        self._cut_order = [at for _, at in sorted(by_rank)]

    def fill(
        self, texts: Sequence[str], pair_texts: Sequence[str], *, instruction: str, keeps_end: bool
    ) -> list[list[Filled]]:
        """The parts of each pair, whole. keeps_end: of a document that is too long."""
        fillings = [
            {"{instruction}": instruction, "{query}": text, "{document}": pair_text}
            for text, pair_text in zip(texts, pair_texts, strict=True)
        ]
        for filling in fillings if self._stripped else ():
            filling.update({place: filling[place].strip() for place in self._stripped})
        columns = [
            # an instruction's own part is left out where there is none
            part.fill(fillings, keeps_end=keeps_end)
            if instruction or part.places != ["{instruction}"]
            else [Filled([], 0)] * len(fillings)
            for part in self._parts
        ]
        return [list(parts) for parts in zip(*columns, strict=True)]

    def cut(self, parts: list[Filled], excess: int) -> None:
        """Take `excess` tokens out of the parts of a pair: of the document, then the query, then the instruction."""
        for at in self._cut_order:
            excess = _cut_part(parts, at, parts[at].tail, excess)
        for at in self._cut_order if excess else ():  # an instruction that ends its part
            excess = _cut_part(parts, at, self._parts[at].tail, excess)


def _cut_part(parts: list[Filled], at: int, tail: tuple[int, ...], excess: int) -> int:
    """Take up to `excess` tokens out of a part, but for the tail. How many are still to be taken."""
    part = parts[at]
    lost = min(excess, max(len(part.ids) - part.head - len(tail), 0))  # the first tokens of the document
    ids = part.ids[: part.head] + part.ids[part.head + lost :]
    excess -= lost
    kept = [*ids[: max(len(ids) - len(tail) - excess, 0)], *tail] if excess else ids
    parts[at] = Filled(kept, len(kept), tail)
    return excess - (len(ids) - len(kept))


def _whole(encoding: "tokenizers.Encoding", tail: tuple[int, ...] = ()) -> Filled:
    return Filled(encoding.ids, len(encoding), tail)

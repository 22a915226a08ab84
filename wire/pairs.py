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
        self.tail = self._tail() if "{document}" in self.places else ()

    def fill(self, fillings: Sequence[dict[str, str]], *, keeps_end: bool) -> list[Filled]:
        """The tokens of this part for each pair."""
        if self.fixed is not None:
            return [self.fixed] * len(fillings)
        asks = self.places != ["{instruction}"]  # an instruction's own part is left out where there is none
        joined = ("".join(filling.get(piece, piece) for piece in self._pieces) for filling in fillings)
        texts = [text if asks or each["{instruction}"] else "" for text, each in zip(joined, fillings, strict=True)]
        if not keeps_end or "{document}" not in self.places:
            return [_whole(encoding, self.tail) for encoding in self._encode(texts, self.hides_specials)]
        encodings = self._encode(texts, self.hides_specials, with_offsets=True)
        starts = map(self._start, fillings)
        pairs = zip(encodings, starts, strict=True)  # the first tokens, up to so many characters, stay
        return [Filled(one.ids, sum(stop <= start for _, stop in one.offsets), self.tail) for one, start in pairs]

    def _tail(self) -> tuple[int, ...]:
        """The tokens of the text after the last place: those that end the part whatever is filled in, as in
        sentence-transformers."""
        if self._pieces[-1] in PLACES:
            return ()
        texts = ["".join(filler if piece in PLACES else piece for piece in self._pieces) for filler in _FILLERS]
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
        columns = [part.fill(fillings, keeps_end=keeps_end) for part in self._parts]
        return [list(parts) for parts in zip(*columns, strict=True)]

    def cut(self, parts: list[Filled], excess: int) -> None:
        """Take `excess` tokens out of the parts of a pair: of the document, then the query, then the instruction."""
        for at in self._cut_order:
            part = parts[at]
            lost = min(excess, len(part.ids) - part.head)  # the first tokens of the document
            ids = part.ids[: part.head] + part.ids[part.head + lost :]
            excess -= lost
            kept = [*ids[: max(len(ids) - len(part.tail) - excess, 0)], *part.tail] if excess else ids
            excess -= len(ids) - len(kept)
            parts[at] = Filled(kept, len(kept), part.tail)


def _whole(encoding: "tokenizers.Encoding", tail: tuple[int, ...] = ()) -> Filled:
    return Filled(encoding.ids, len(encoding), tail)

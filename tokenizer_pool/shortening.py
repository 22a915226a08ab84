"""Long texts cut down to what can matter: to more tokens than are kept, found slice by slice.

A character may be many tokens or none, so only tokens say where a text can end. Pieces of a few milliseconds are
scanned until there are enough, and others have their turns in between. Runs in a frontend.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tokenizer_pool.messages import TextRefusal, TextRefused, Truncation
from tokenizer_pool.tasks import ScannedPiece, ScanPiece

# A shorter text is tokenized in one go, about 50 ms of work.
LONG_TEXT_CHARS = 50_000

# A text's bytes in UTF-8: as far as is read until there are enough tokens.
MAX_TEXT_BYTES = 1 << 22

# Bounds a slice in which no place to cut is found: it may take 200 times as many bytes of memory while it is tokenized.
MAX_UNCUT_CHARS = 1 << 18
_GROWTH = 4  # of a slice in which no place to cut is found
Scan = Callable[[ScanPiece], Awaitable[ScannedPiece]]  # raises TextRefused


@dataclass(frozen=True, slots=True)
class Shortened:
    """A long text as far as it matters."""

    text: str  # has the same tokens; characters that make none may be missing
    start: int  # of the part of the whole text that has these tokens; it may begin a little earlier
    stop: int
    is_cut: bool  # whether there are more tokens than are kept


@dataclass(frozen=True, slots=True)
class _Place:
    """The beginning of a slice."""

    num_done: int  # pieces of text before it
    num_tokens: int  # counted before it
    origin: int  # in the whole text, or a little before


class Reading:
    """How far a long text has been read: the slice at hand, and what lies before it.

    The text stands behind a prompt, of which each character stays.
    """

    def __init__(self, text: str, *, prompt: str, readable: int, slice_chars: int) -> None:
        self._text = text  # with the prompt
        self._prompt_chars = len(prompt)
        self._readable = readable
        self._slice_chars = self.size = slice_chars
        self._done: list[str] = []
        self._places = [_Place(0, 0, 0)]
        self._position = 0  # in the whole text, where the slice ends
        self._num_whole = 0  # characters at the end of the slice that are those of the text
        self.slice = ""
        self.num_tokens = self.num_repeated = 0

    @property
    def is_end(self) -> bool:
        """Whether the text ends with the slice."""
        return self._position == len(self._text)

    @property
    def is_all(self) -> bool:
        """Whether no more may be read."""
        return self._position == self._readable

    @property
    def num_fixed(self) -> int:
        """Characters of the slice that are the prompt's."""
        return min(max(self._prompt_chars - sum(map(len, self._done)), 0), len(self.slice))

    def extend(self) -> None:
        """Make the slice as long as it should be, and longer in any case."""
        stop = self._position + max(self.size - len(self.slice), self._slice_chars // 2, 1)
        added = self._text[self._position : min(stop, self._readable)]
        self.slice += added
        self._position += len(added)
        self._num_whole += len(added)

    def shrink(self, shorter: str) -> None:
        """Go on with a text in place of the slice."""
        self.slice, self._num_whole, self.size = shorter, 0, self._slice_chars

    def restart(self, scanned: ScannedPiece) -> None:
        """Let the next slice begin inside of this one."""
        self._done.append(self.slice[: scanned.restart])
        self.slice, self.size = self.slice[scanned.restart :], self._slice_chars
        self.num_tokens += scanned.num_tokens
        self.num_repeated = scanned.num_repeated
        self._num_whole = min(self._num_whole, len(self.slice))
        is_known = self._num_whole == len(self.slice)
        origin = self._position - len(self.slice) if is_known else self._places[-1].origin
        self._places.append(_Place(len(self._done), self.num_tokens, origin))

    def part(self, num_before: int, *, is_cut: bool) -> Shortened:
        """The text from the last place that has no more tokens before it, to the end of the slice."""
        place = max((place for place in self._places if place.num_tokens <= num_before), key=lambda each: each.num_done)
        text = "".join(self._done[place.num_done :]) + self.slice
        return Shortened(text, place.origin, self._position, is_cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortener:
    """Shortens the texts of one request."""

    scan: Scan
    piece: partial[ScanPiece]  # lacks the text, num_repeated and what has a default
    slice_chars: int
    max_tokens: int  # that may be kept of a text
    truncation: Truncation

    async def shortened(
        self, texts: Sequence[str], pair_texts: Sequence[str], *, prompt: str
    ) -> tuple[Sequence[str], Sequence[str]]:
        """Texts or pairs, of which those that are not too long stay as they are.

        A long text that is not of a pair has the prompt before it, or has lost its start: before what is left, a prompt
        could change tokens.

        Raises TextRefused, as `part` does, with the index of the text or pair.
        """
        if pair_texts:
            return await self._pairs(texts, pair_texts, prompt)
        return [part.text if part else text for text, part in await self._parts(texts, prompt)], ()

    async def spans(self, texts: Sequence[str]) -> Sequence[str]:
        """Texts with more than `max_tokens` tokens cut down to a part with a few more, which stands so in the text."""
        parts = await self._parts(texts, "")
        return [text[part.start : part.stop] if part and part.is_cut else text for text, part in parts]

    async def _parts(self, texts: Sequence[str], prompt: str) -> list[tuple[str, Shortened | None]]:
        """Each text, and what matters of it if it is long."""
        return [
            (text, await self._part_of(text, index, prompt) if len(text) > LONG_TEXT_CHARS else None)
            for index, text in enumerate(texts)
        ]

    async def _pairs(
        self, texts: Sequence[str], pair_texts: Sequence[str], prompt: str
    ) -> tuple[Sequence[str], Sequence[str]]:
        """Where both texts of a pair have more tokens than are kept, both stay whole: of two such texts the longer may
        keep one token more. So does the first with left truncation, for in a template a query still loses its end."""
        firsts, seconds = list(texts), list(pair_texts)
        known: dict[tuple[str, str], Shortened] = {}  # a query is the same text for all its documents
        for index, pair in enumerate(zip(texts, pair_texts, strict=True)):
            if max(map(len, pair)) <= LONG_TEXT_CHARS:
                continue
            asked = (pair[0], prompt), (pair[1], "")
            for each in asked:
                if each not in known:
                    known[each] = await self._part_of(each[0], index, each[1])
            first, second = (known[each] for each in asked)
            if not first.is_cut:
                firsts[index], seconds[index] = first.text[len(prompt) :], second.text
            elif not second.is_cut:
                firsts[index] = pair[0] if self.truncation is Truncation.LEFT else first.text[len(prompt) :]
                seconds[index] = second.text
            elif any(num_readable(text) < len(text) for text in pair):
                raise TextRefused(TextRefusal.TOO_LARGE, index, max_tokens=self.max_tokens)
        return firsts, seconds

    async def _part_of(self, text: str, index: int, prompt: str = "") -> Shortened:
        try:
            return await self.part(text, prompt)
        except TextRefused as refused:
            refused.index = index
            raise

    async def part(self, text: str, prompt: str = "") -> Shortened:
        """The part that matters of a prompt and its text: all of it, or more than `max_tokens` tokens, of which those
        that are kept are those of the whole text.

        Raises TextRefused: TOO_LONG with Truncation.NONE, TOO_LARGE, UNCUT, FAILED; its index is 0.
        """
        whole = prompt + text
        is_left = self.truncation is Truncation.LEFT
        readable = num_readable(whole)
        if is_left and readable < len(whole):
            raise self._refused(TextRefusal.TOO_LARGE)
        reading = Reading(whole, prompt=prompt, readable=readable, slice_chars=self.slice_chars)
        while True:
            reading.extend()
            scanned = await self._scan_slice(reading)
            num_tokens = reading.num_tokens + scanned.num_tokens
            is_cut = num_tokens > self.max_tokens
            if is_cut and not is_left:
                return self._first(reading)
            if reading.is_end:
                return reading.part(num_tokens - self.max_tokens - 1 if is_cut else 0, is_cut=is_cut)
            self._go_on(reading, scanned)

    async def _scan_slice(self, reading: Reading) -> ScannedPiece:
        """The slice, or a shorter text that reads the same. Raises TextRefused."""
        while True:
            scanned = await self.scan(
                self.piece(
                    reading.slice,
                    reading.num_repeated,
                    reading.is_end,
                    keeps_end=self.truncation is Truncation.LEFT,
                    num_fixed=reading.num_fixed,
                )
            )
            if not scanned.shorter:
                return scanned
            reading.shrink(scanned.shorter)
            reading.extend()

    def _go_on(self, reading: Reading, scanned: ScannedPiece) -> None:
        """Go on to the next slice. Raises TextRefused."""
        if scanned.restart:
            reading.restart(scanned)
        elif reading.is_all:
            raise self._refused(TextRefusal.TOO_LARGE)
        elif len(reading.slice) >= MAX_UNCUT_CHARS:
            raise self._refused(TextRefusal.UNCUT)
        else:
            reading.size = min(len(reading.slice) * _GROWTH, MAX_UNCUT_CHARS)

    def _first(self, reading: Reading) -> Shortened:
        if self.truncation is Truncation.NONE:
            raise self._refused(TextRefusal.TOO_LONG)
        return reading.part(0, is_cut=True)

    def _refused(self, reason: TextRefusal) -> TextRefused:
        return TextRefused(reason, 0, max_tokens=self.max_tokens)


def num_readable(text: str) -> int:
    """Characters of a text that are read at most."""
    if len(text) <= MAX_TEXT_BYTES // 4:
        return len(text)
    encoded = text.encode(errors="surrogatepass")[:MAX_TEXT_BYTES]
    return len(text) if len(encoded) < MAX_TEXT_BYTES else len(encoded.decode(errors="ignore"))

"""Long texts cut down to what can matter: to more tokens than are kept, found slice by slice.

A character may be many tokens or none, so only tokens say where a text can end. Pieces of a few milliseconds are
scanned until there are enough, and others have their turns in between. Runs in a frontend.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tokenizer_pool.long_texts.scan import ScannedPiece, ScanPiece
from tokenizer_pool.messages import Refusal, TextRefused, Truncation

# A shorter text is tokenized in one go, about 50 ms of work.
LONG_TEXT_CHARS = 50_000
# In UTF-8, of one text: as far as is read until there are enough tokens. A text without words can't be cut, and takes
# up to 200 times its bytes of memory while it is tokenized.
MAX_TEXT_BYTES = 1 << 22

_GROWTH = 4  # of a slice that is too short to count anything

Scan = Callable[[ScanPiece], Awaitable[ScannedPiece]]  # raises TextRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortener:
    """For texts of one request."""

    scan: Scan
    piece: partial[ScanPiece]  # lacks the text, num_repeated and is_end
    slice_chars: int
    max_tokens: int  # that may be kept of a text
    truncation: Truncation

    async def shortened(
        self, texts: Sequence[str], pair_texts: Sequence[str], *, prompt: str
    ) -> tuple[Sequence[str], Sequence[str]]:
        """Texts or pairs, of which those that are not too long stay as they are.

        Raises TextRefused, as `part` does, with the index of the text or pair.
        """
        if pair_texts:
            return await self._pairs(texts, pair_texts)
        return await self.texts(texts, prompt=prompt), ()

    async def texts(self, texts: Sequence[str], *, prompt: str = "") -> Sequence[str]:
        """The same for texts alone."""
        shortened = list(texts)
        for index, text in enumerate(texts):
            if len(text) > LONG_TEXT_CHARS:
                part = await self._part_of(prompt + text, index)
                if part is not None and self.truncation is Truncation.LEFT:
                    shortened[index] = text[-len(part) :]
                elif part is not None:
                    shortened[index] = part[len(prompt) :]
        return shortened

    async def _pairs(self, texts: Sequence[str], pair_texts: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        """Where both texts of a pair have more tokens than are kept, both stay whole: of two such texts the longer may
        keep one token more. So does the first with left truncation, for in a template a query still loses its end."""
        firsts, seconds = list(texts), list(pair_texts)
        known: dict[str, str | None] = {}  # a query is the same text for all its documents
        for index, pair in enumerate(zip(texts, pair_texts, strict=True)):
            if not has_long(pair):
                continue
            for text in pair:
                if text not in known:
                    known[text] = await self._part_of(text, index)
            first, second = map(known.get, pair)
            if first is None:
                seconds[index] = second or pair[1]
            elif second is None:
                firsts[index] = pair[0] if self.truncation is Truncation.LEFT else first
            elif any(num_readable(text) < len(text) for text in pair):
                raise TextRefused(Refusal.TOO_LARGE, index, max_tokens=self.max_tokens)
        return firsts, seconds

    async def _part_of(self, text: str, index: int) -> str | None:
        try:
            return await self.part(text)
        except TextRefused as refused:
            refused.index = index
            raise

    async def part(self, text: str) -> str | None:
        """A part with more than `max_tokens` tokens, of which those that are kept are those of the whole text; None
        where the text has no more than these.

        Raises TextRefused: TOO_LONG with Truncation.NONE, TOO_LARGE, FAILED; its index is 0.
        """
        is_left = self.truncation is Truncation.LEFT
        readable = num_readable(text)
        if is_left and readable < len(text):
            raise TextRefused(Refusal.TOO_LARGE, 0, max_tokens=self.max_tokens)
        counted = [(0, 0)]  # where slices begin, and how many tokens are counted before
        num_tokens = num_repeated = start = 0
        size = self.slice_chars
        while True:
            stop = min(start + size, readable)
            is_end = stop == len(text)
            scanned = await self.scan(self.piece(text[start:stop], num_repeated, is_end))
            num_tokens += scanned.num_tokens
            if num_tokens > self.max_tokens and not is_left:
                return self._first(text[:stop])
            if is_end:
                return self._last(text, counted, num_tokens) if num_tokens > self.max_tokens else None
            if scanned.restart:
                start, num_repeated, size = start + scanned.restart, scanned.num_repeated, self.slice_chars
                counted.append((start, num_tokens))
            elif stop == readable:
                raise TextRefused(Refusal.TOO_LARGE, 0, max_tokens=self.max_tokens)
            else:
                size *= _GROWTH

    def _first(self, part: str) -> str:
        if self.truncation is Truncation.NONE:
            raise TextRefused(Refusal.TOO_LONG, 0, max_tokens=self.max_tokens)
        return part

    def _last(self, text: str, counted: Sequence[tuple[int, int]], num_tokens: int) -> str:
        """From the last place that leaves enough tokens."""
        return text[max(start for start, before in counted if num_tokens - before > self.max_tokens) :]


def has_long(texts: Sequence[str]) -> bool:
    """Whether any of them is too long for one piece."""
    return max(map(len, texts), default=0) > LONG_TEXT_CHARS


def num_readable(text: str) -> int:
    """Characters of a text that are read at most."""
    if len(text) <= MAX_TEXT_BYTES // 4:
        return len(text)
    encoded = text.encode(errors="surrogatepass")[:MAX_TEXT_BYTES]
    return len(text) if len(encoded) < MAX_TEXT_BYTES else len(encoded.decode(errors="ignore"))

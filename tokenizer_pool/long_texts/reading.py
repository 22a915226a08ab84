"""How far a long text has been read: the slice at hand, and what lies before it."""

from dataclasses import dataclass

from tokenizer_pool.long_texts.scan import ScannedPiece


@dataclass(frozen=True, slots=True)
class Shortened:
    """A long text as far as it matters."""

    text: str  # has the same tokens; characters that make none may be missing
    start: int  # of the part of the whole text that has these tokens; it may begin a little earlier
    stop: int
    is_cut: bool  # whether there are more tokens than are kept


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a slice begins."""

    num_done: int  # pieces of text before it
    num_tokens: int  # counted before it
    origin: int  # in the whole text, or a little before


class Reading:
    """Of one text behind a prompt, of which each character stays."""

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
        """From the last place that has no more tokens before it, to the end of the slice."""
        place = max((place for place in self._places if place.num_tokens <= num_before), key=lambda each: each.num_done)
        text = "".join(self._done[place.num_done :]) + self.slice
        return Shortened(text, place.origin, self._position, is_cut)

"""Long texts slice by slice: how many tokens a slice has for certain, and the frames that ask for it and say it.

Where a slice is cut and what follows may change its last tokens, so the next slice begins a few words earlier. Where
much of a slice makes no token of its own, the answer is a shorter text that reads the same, to go on with.
"""

import struct
from dataclasses import dataclass

from wire.frames import Buffer
from wire.vocabulary import RequestClass

# model (u16), class (u8), whether the text ends here, is of a pair, and keeps its end (u8 each), tokens that were
# counted before (u32), characters that stay (u32); then the slice in UTF-8
_SCAN = struct.Struct("<HBBBBII")
# seconds of work, tokens, restart, tokens that are repeated; then the shorter text in UTF-8
_SCANNED = struct.Struct("<dIII")


@dataclass(frozen=True, slots=True)
class ScanPiece:
    """A slice of a text."""

    model: int  # index of the model in this server
    request_class: RequestClass
    text: str
    num_repeated: int  # tokens at its start that an earlier slice has counted
    is_end: bool  # whether the text ends with it
    is_of_pair: bool = False  # a template may then take special tokens in it for plain text
    keeps_end: bool = False  # the next slice may then be where a text begins that is tokenized by itself
    num_fixed: int = 0  # characters at its start that stay as they are

    @property
    def num_items(self) -> int:
        """One."""
        return 1

    @property
    def num_chars(self) -> int:
        """Of the slice."""
        return len(self.text)


@dataclass(frozen=True, slots=True)
class ScannedPiece:
    """The tokens of a slice that are those of the whole text, whatever follows."""

    num_tokens: int  # not counted before; all of them where the text ends
    restart: int  # the character of the slice at which the next one begins; 0 = no place for that was found
    num_repeated: int  # tokens from there that are counted now
    seconds: float = 0.0  # of work in the worker
    shorter: str = ""  # has the tokens of the slice, whatever follows; then nothing is counted

    @property
    def num_items(self) -> int:
        """One."""
        return 1


def encode_scan(piece: ScanPiece) -> list[Buffer]:
    """SCAN. Raises UnicodeEncodeError where the slice holds a lone surrogate."""
    flags = piece.is_end, piece.is_of_pair, piece.keeps_end
    counts = piece.num_repeated, piece.num_fixed
    return [_SCAN.pack(piece.model, piece.request_class, *flags, *counts), piece.text.encode()]


def decode_scan(payload: memoryview) -> ScanPiece:
    """The inverse of `encode_scan`."""
    model, request_class, is_end, is_of_pair, keeps_end, num_repeated, num_fixed = _SCAN.unpack_from(payload)
    text, flags = str(payload[_SCAN.size :], "utf-8"), (bool(is_end), bool(is_of_pair), bool(keeps_end))
    return ScanPiece(model, RequestClass(request_class), text, num_repeated, *flags, num_fixed)


def encode_scanned(piece: ScannedPiece) -> list[Buffer]:
    """SCANNED."""
    head = _SCANNED.pack(piece.seconds, piece.num_tokens, piece.restart, piece.num_repeated)
    return [head, piece.shorter.encode()]


def decode_scanned(payload: memoryview) -> ScannedPiece:
    """The inverse of `encode_scanned`. Raises struct.error or UnicodeDecodeError."""
    seconds, num_tokens, restart, num_repeated = _SCANNED.unpack_from(payload)
    return ScannedPiece(num_tokens, restart, num_repeated, seconds, str(payload[_SCANNED.size :], "utf-8"))

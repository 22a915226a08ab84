"""Long texts slice by slice: how many tokens a slice has for certain, and the frames that ask for it and say it.

Where a slice is cut and what follows may change its last tokens, so the next slice begins a few words earlier.
"""

import struct
from dataclasses import dataclass

from wire.frames import Buffer
from wire.vocabulary import RequestClass

# model (u16), class (u8), whether the text ends here (u8), whether it is of a pair (u8), tokens that were counted
# before (u32); then the slice in UTF-8
_SCAN = struct.Struct("<HBBBI")
_SCANNED = struct.Struct("<dIII")  # seconds of work, tokens, restart, tokens that are repeated


@dataclass(frozen=True, slots=True)
class ScanPiece:
    """A slice of a text."""

    model: int  # index of the model in this server
    request_class: RequestClass
    text: str
    num_repeated: int  # tokens at its start that an earlier slice has counted
    is_end: bool  # whether the text ends with it
    is_of_pair: bool = False  # a template may then take special tokens in it for plain text

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
    restart: int  # the character of the slice at which the next one begins; 0 = it is too short to count anything
    num_repeated: int  # tokens from there that are counted now
    seconds: float = 0.0  # of work in the worker

    @property
    def num_items(self) -> int:
        """One."""
        return 1


def encode_scan(piece: ScanPiece) -> list[Buffer]:
    """SCAN. Raises UnicodeEncodeError where the slice holds a lone surrogate."""
    flags = piece.is_end, piece.is_of_pair
    return [_SCAN.pack(piece.model, piece.request_class, *flags, piece.num_repeated), piece.text.encode()]


def decode_scan(payload: memoryview) -> ScanPiece:
    """The inverse of `encode_scan`."""
    model, request_class, is_end, is_of_pair, num_repeated = _SCAN.unpack_from(payload)
    text = str(payload[_SCAN.size :], "utf-8")
    return ScanPiece(model, RequestClass(request_class), text, num_repeated, bool(is_end), bool(is_of_pair))


def encode_scanned(piece: ScannedPiece) -> list[Buffer]:
    """SCANNED."""
    return [_SCANNED.pack(piece.seconds, piece.num_tokens, piece.restart, piece.num_repeated)]


def decode_scanned(payload: memoryview) -> ScannedPiece:
    """The inverse of `encode_scanned`. Raises struct.error."""
    seconds, num_tokens, restart, num_repeated = _SCANNED.unpack_from(payload)
    return ScannedPiece(num_tokens, restart, num_repeated, seconds)

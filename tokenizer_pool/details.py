"""The two lesser things a tokenizer worker is asked for: the tokens of texts one by one, and the texts of ids.

What they are made of, and the frames that carry them. Knows nothing of tokenizers.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenizer_pool.messages import decode_texts, encode_texts
from wire.frames import Buffer
from wire.vocabulary import RequestClass

# model (u16), class (u8), whether special tokens are added (u8), number of texts (u32), bytes of the prompt (u32);
# then the texts as `encode_texts` has them
_DETAIL = struct.Struct("<HBBII")
# seconds of work (f64), number of texts (u32); then int32 offsets [n+1], ids, starts, stops and lengths of the tokens'
# texts in characters, uint8 1 where special and 2 where the token continues a word, and the tokens' texts in UTF-8,
# one after another
_DETAILED = struct.Struct("<dI")
_SPECIAL, _SUBWORD = 1, 2
# model (u16), class (u8), whether special tokens are left out (u8), number of lists (u32);
# then int32 offsets [n+1], ids
_DECODE = struct.Struct("<HBBI")
_DECODED = struct.Struct("<dI")  # seconds of work, number of texts; then the texts as `encode_texts` has them


class Token(NamedTuple):
    """One token of a text. `start` and `stop` count characters of the text with its prompt before it."""

    token_id: int
    text: str  # the part of the text that it stands for; the name of a special one
    is_special: bool  # whether it was put around the text, and is no part of it
    start: int | None  # None where it is special
    stop: int | None
    is_subword: bool = False  # whether it continues a word; never where special


@dataclass(frozen=True, slots=True)
class DetailPiece:
    """Some texts of one request whose tokens are wanted one by one, and never cut."""

    model: int  # index of the model in this server
    request_class: RequestClass
    texts: Sequence[str]
    prompt: str = ""  # put before each text
    add_special_tokens: bool = True

    @property
    def num_items(self) -> int:
        """Texts."""
        return len(self.texts)

    @property
    def num_chars(self) -> int:
        """Characters of the texts, with the prompt before each of them."""
        return sum(map(len, self.texts)) + len(self.prompt) * len(self.texts)


@dataclass(frozen=True, slots=True)
class DetailedPiece:
    """The tokens of each text."""

    tokens: Sequence[list[Token]]
    seconds: float  # of work in the worker

    @property
    def num_items(self) -> int:
        """Texts."""
        return len(self.tokens)

    @property
    def num_tokens(self) -> int:
        """Of all texts."""
        return sum(map(len, self.tokens))


@dataclass(frozen=True, slots=True)
class DecodePiece:
    """N lists of ids of one request whose texts are wanted."""

    model: int  # index of the model in this server
    request_class: RequestClass
    token_ids: NDArray[np.int32]  # [offsets[-1]], none below 0
    offsets: NDArray[np.int32]  # [N + 1]
    skip_special_tokens: bool = True

    @property
    def num_items(self) -> int:
        """N."""
        return len(self.offsets) - 1

    @property
    def num_chars(self) -> int:
        """Ids, each about as much work as a character."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class DecodedPiece:
    """The text of each list of ids."""

    texts: list[str]
    seconds: float  # of work in the worker

    @property
    def num_items(self) -> int:
        """Texts."""
        return len(self.texts)


def encode_detail(piece: DetailPiece) -> list[Buffer]:
    """DETAIL. Raises UnicodeEncodeError where a text holds a lone surrogate."""
    prompt = piece.prompt.encode()
    header = _DETAIL.pack(piece.model, piece.request_class, piece.add_special_tokens, piece.num_items, len(prompt))
    return [header, *encode_texts(piece.texts, prompt)]


def decode_detail(payload: memoryview) -> DetailPiece:
    """The inverse of `encode_detail`."""
    model, request_class, add_special_tokens, num_texts, prompt_bytes = _DETAIL.unpack_from(payload)
    prompt, texts = decode_texts(payload, _DETAIL.size, num_texts, prompt_bytes)
    return DetailPiece(model, RequestClass(request_class), texts, prompt, bool(add_special_tokens))


def encode_detailed(piece: DetailedPiece) -> list[Buffer]:
    """DETAILED."""
    tokens = [token for each in piece.tokens for token in each]
    rows = [(token.token_id, token.start or 0, token.stop or 0, len(token.text)) for token in tokens]
    return [
        _DETAILED.pack(piece.seconds, piece.num_items),
        np.cumsum([0, *map(len, piece.tokens)], dtype=np.int32).tobytes(),
        np.array(rows, np.int32).reshape(-1, 4).T.tobytes(),
        bytes(token.is_special + _SUBWORD * token.is_subword for token in tokens),
        "".join(token.text for token in tokens).encode(),
    ]


def decode_detailed(payload: memoryview) -> DetailedPiece:
    """The inverse of `encode_detailed`. Raises struct.error or ValueError."""
    seconds, num_texts = _DETAILED.unpack_from(payload)
    offsets = np.frombuffer(payload, np.int32, num_texts + 1, _DETAILED.size)
    at, num_tokens = _DETAILED.size + offsets.nbytes, int(offsets[-1])
    token_ids, starts, stops, lengths = np.frombuffer(payload, np.int32, 4 * num_tokens, at).reshape(4, num_tokens)
    at += 16 * num_tokens
    flags = bytes(payload[at : at + num_tokens])
    text = str(payload[at + num_tokens :], "utf-8")
    bounds = pairwise(np.cumsum([0, *lengths.tolist()]).tolist())
    columns = zip(token_ids.tolist(), bounds, flags, starts.tolist(), stops.tolist(), strict=True)
    tokens = [
        Token(token_id, text[first:end], False, start, stop, flag == _SUBWORD)
        if flag != _SPECIAL
        else Token(token_id, text[first:end], True, None, None)
        for token_id, (first, end), flag, start, stop in columns
    ]
    return DetailedPiece([tokens[first:end] for first, end in pairwise(offsets.tolist())], seconds)


def encode_decode(piece: DecodePiece) -> list[Buffer]:
    """DECODE."""
    header = _DECODE.pack(piece.model, piece.request_class, piece.skip_special_tokens, piece.num_items)
    return [header, piece.offsets.tobytes(), piece.token_ids.tobytes()]


def decode_decode(payload: memoryview) -> DecodePiece:
    """The inverse of `encode_decode`; the arrays are views of the payload."""
    model, request_class, skip_special_tokens, num_lists = _DECODE.unpack_from(payload)
    offsets = np.frombuffer(payload, np.int32, num_lists + 1, _DECODE.size)
    token_ids = np.frombuffer(payload, np.int32, int(offsets[-1]), _DECODE.size + offsets.nbytes)
    return DecodePiece(model, RequestClass(request_class), token_ids, offsets, bool(skip_special_tokens))


def encode_decoded(piece: DecodedPiece) -> list[Buffer]:
    """DECODED."""
    return [_DECODED.pack(piece.seconds, piece.num_items), *encode_texts(piece.texts)]


def decode_decoded(payload: memoryview) -> DecodedPiece:
    """The inverse of `encode_decoded`. Raises struct.error or ValueError."""
    seconds, num_texts = _DECODED.unpack_from(payload)
    return DecodedPiece(decode_texts(payload, _DECODED.size, num_texts)[1], seconds)

"""The messages of a tokenizer worker: START, and the frames between it and a frontend.

The worker sends READY on each connection it accepts. Under the same id it answers TOKENIZE with TOKENIZED, DETAIL with
DETAILED, DECODE with DECODED, CHAT with RENDERED and SCAN with SCANNED, or any of them with REFUSED. What the
last four carry is in `tasks`.
"""

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from wire.frames import Buffer
from wire.vocabulary import RequestClass

TOKENIZE = 0x0200
TOKENIZED = 0x0201
REFUSED = 0x0202
READY = 0x0203  # no payload: a connection opens before its peer has accepted it, this says that the peer lives
DETAIL = 0x0204
DETAILED = 0x0205
DECODE = 0x0206
DECODED = 0x0207
CHAT = 0x0208
RENDERED = 0x0209
SCAN = 0x020A
SCANNED = 0x020B

# model (u16), class (u8), truncation (u8), number of texts (u32), bytes of the prompt (u32), pairing (u8), whether
# special tokens are added (u8), whether the texts have the prompt already (u8), most tokens of a text (u32, 0 = as many
# as the model takes); then uint32 byte lengths [n], the prompt, the texts, all UTF-8
_TOKENIZE = struct.Struct("<HBBIIBBBI")
# seconds of work (f64), number of texts (u32); then int32 offsets [n+1], ids, token types if there are any,
# uint8 truncated [n], and last, where it leaves the arrays aligned, whether there are types (u8)
_TOKENIZED = struct.Struct("<dI")
_REFUSED = struct.Struct("<BiII")  # reason, index of the text in its piece (-1 = none), tokens given, tokens allowed


class Truncation(enum.IntEnum):
    """The end of a text that is cut off where it is too long; NONE refuses it."""

    NONE = 0
    RIGHT = 1
    LEFT = 2


class _Pairing(enum.IntEnum):
    """How the texts of a frame make pairs."""

    NONE = 0
    EACH = 1  # first texts, then as many second ones
    SHARED = 2  # one first text of all pairs, then their second ones: a query goes out once, whatever is ranked by it


class TextRefusal(enum.IntEnum):
    """Why there are no ids for a text, or none for the model in a given list of ids, or no text for the ids."""

    TOO_LONG = 0  # only with Truncation.NONE
    FAILED = 1  # the tokenizer could not take the text
    EMPTY = 2  # no tokens: a given list is empty, or the text is blank and the model has no special tokens
    OUT_OF_VOCABULARY = 3  # an id that the model has no row for: a given one, or of an added token in the text
    TOO_MUCH = 4  # all items of a request together: more than it may have for details, or to be decoded
    NO_ROOM = 5  # the special tokens alone are as many as a text may have in this request
    NO_TEMPLATE = 6  # the model has no chat template
    TOO_LARGE = 7  # a text has not enough tokens as far as it is read
    UNCUT = 8  # a text has no place to cut for too long, and not enough tokens before


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSpec:
    """The facts about a model that a worker needs."""

    folder: str  # a local model folder with a tokenizer.json
    max_seqlen: int  # tokens of a text, special tokens included
    do_lower_case: bool = False  # of sentence_bert_config.json: lower-case before anything else
    vocab_size: int | None = None  # rows of the model's embedding table; None = ids are not checked
    template: tuple[str, ...] = ()  # parts that a pair is put into, see engine.model.tasks.PairTemplate; () = none
    as_it_stands: bool = False  # tokenizer.json alone says all, and there are no special tokens: static embeddings
    marks_prompts: bool = False  # tokens of a prompt get PROMPT_TOKEN added to their type, see engine.types


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerStart:
    """START for a tokenizer worker."""

    listener_fd: int  # of its listening Unix socket
    models: list[str]  # names
    tokenizers: list[TokenizerSpec]  # of the same models


@dataclass(frozen=True, slots=True)
class Piece:
    """Some texts of one request, to be tokenized in one go."""

    model: int  # index of the model in this server
    request_class: RequestClass
    truncation: Truncation
    texts: Sequence[str]
    prompt: str = ""  # put before each text; of pairs for a template, the instruction
    pair_texts: Sequence[str] = ()  # as many second texts, which make pairs; () = texts alone
    max_tokens: int | None = None  # of each text or pair; None = as many as the model takes
    add_special_tokens: bool = True  # to texts alone
    is_prompted: bool = False  # the texts have the prompt already, as far as it matters

    @property
    def num_items(self) -> int:
        """Texts or pairs."""
        return len(self.texts)

    @property
    def num_chars(self) -> int:
        """Characters of all texts, with the prompt before each of them or in each pair."""
        return sum(map(len, self.texts)) + sum(map(len, self.pair_texts)) + len(self.prompt) * len(self.texts)


@dataclass(frozen=True, slots=True)
class TokenizedPiece:
    """N texts as flat ids."""

    token_ids: NDArray[np.int32]  # [offsets[-1]], special tokens included
    offsets: NDArray[np.int32]  # [N + 1]
    truncated: NDArray[np.uint8]  # [N], 1 where a text lost tokens
    seconds: float  # of work in the worker
    token_type_ids: NDArray[np.int32] | None = None  # [offsets[-1]]; None = all zero

    @property
    def num_items(self) -> int:
        """N."""
        return len(self.truncated)

    @property
    def num_tokens(self) -> int:
        """The tokens of all texts."""
        return len(self.token_ids)


class TextRefused(Exception):
    """An item has no answer; `index` is its place in the piece or request, -1 where it is not known.

    TOO_LONG carries what was given and what is allowed; num_tokens is 0 where they were not all counted.
    NO_ROOM carries the number of special tokens and what is allowed. TOO_MUCH carries the characters that all items
    of a request may have together, if these are too many.
    """

    def __init__(
        self, reason: TextRefusal, index: int, *, num_tokens: int = 0, max_tokens: int = 0, max_chars: int = 0
    ) -> None:
        super().__init__(f"{reason.name} at index {index}")
        self.reason = reason
        self.index = index
        self.num_tokens = num_tokens
        self.max_tokens = max_tokens
        self.max_chars = max_chars

    def moved(self, places: Sequence[int]) -> Self:
        """Make this the refusal of a request that has the items at these places."""
        if self.index >= 0:
            self.index = places[self.index]
        return self


def encode_piece(piece: Piece) -> list[Buffer]:
    """TOKENIZE. Raises UnicodeEncodeError where a text holds a lone surrogate."""
    prompt = piece.prompt.encode()
    pairing, texts = _paired(piece) if piece.pair_texts else (0, piece.texts)
    header = _TOKENIZE.pack(
        piece.model,
        piece.request_class,
        piece.truncation,
        len(texts),
        len(prompt),
        pairing,
        piece.add_special_tokens,
        piece.is_prompted,
        piece.max_tokens or 0,
    )
    return [header, *encode_texts(texts, prompt)]


def decode_piece(payload: memoryview) -> Piece:
    """The inverse of `encode_piece`."""
    head = _TOKENIZE.unpack_from(payload)
    model, request_class, truncation, num_texts, prompt_bytes, pairing, adds, is_prompted, limit = head
    prompt, texts = decode_texts(payload, _TOKENIZE.size, num_texts, prompt_bytes)
    pair_texts: list[str] = []
    if pairing:
        texts, pair_texts = _unpaired(texts, _Pairing(pairing))
    return Piece(
        model,
        RequestClass(request_class),
        Truncation(truncation),
        texts,
        prompt,
        pair_texts or (),
        limit or None,
        bool(adds),
        bool(is_prompted),
    )


def _paired(piece: Piece) -> tuple[_Pairing, Sequence[str]]:
    """The texts of a piece of pairs as its frame has them."""
    if piece.texts.count(piece.texts[0]) == len(piece.texts):
        return _Pairing.SHARED, [piece.texts[0], *piece.pair_texts]
    return _Pairing.EACH, [*piece.texts, *piece.pair_texts]


def _unpaired(texts: list[str], pairing: _Pairing) -> tuple[list[str], list[str]]:
    """The inverse of `_paired`: first and second texts."""
    if pairing is _Pairing.SHARED:
        return texts[:1] * (len(texts) - 1), texts[1:]
    return texts[: len(texts) // 2], texts[len(texts) // 2 :]


def encode_texts(texts: Sequence[str], prompt: bytes = b"") -> list[Buffer]:
    """uint32 byte lengths [n], the prompt, the texts, all UTF-8. Raises UnicodeEncodeError."""
    encoded = [text.encode() for text in texts]
    lengths = struct.pack(f"<{len(encoded)}I", *map(len, encoded))
    return [lengths, prompt, *encoded]


def decode_texts(payload: memoryview, at: int, num_texts: int, prompt_bytes: int = 0) -> tuple[str, list[str]]:
    """The inverse of `encode_texts`, from byte `at`: the prompt and the texts. Raises struct.error or ValueError."""
    lengths = struct.unpack_from(f"<{num_texts}I", payload, at)
    at += 4 * num_texts
    prompt = str(payload[at : at + prompt_bytes], "utf-8")
    at += prompt_bytes
    texts = []
    for length in lengths:
        texts.append(str(payload[at : at + length], "utf-8"))
        at += length
    return prompt, texts


def encode_tokenized(piece: TokenizedPiece) -> list[Buffer]:
    """TOKENIZED."""
    header = _TOKENIZED.pack(piece.seconds, len(piece.truncated))
    truncated = piece.truncated.tobytes()
    if piece.token_type_ids is None:
        return [header, piece.offsets.tobytes(), piece.token_ids.tobytes(), truncated, b"\0"]
    types = piece.token_type_ids.tobytes()
    return [header, piece.offsets.tobytes(), piece.token_ids.tobytes(), types, truncated, b"\1"]


def decode_tokenized(payload: memoryview) -> TokenizedPiece:
    """The inverse of `encode_tokenized`; the arrays are views of the payload."""
    seconds, num_texts = _TOKENIZED.unpack_from(payload)
    offsets = np.frombuffer(payload, np.int32, num_texts + 1, _TOKENIZED.size)
    ids_at = _TOKENIZED.size + offsets.nbytes
    token_ids = np.frombuffer(payload, np.int32, int(offsets[-1]), ids_at)
    at, token_type_ids = ids_at + token_ids.nbytes, None
    if payload[-1]:
        token_type_ids = np.frombuffer(payload, np.int32, len(token_ids), at)
        at += token_type_ids.nbytes
    truncated = np.frombuffer(payload, np.uint8, num_texts, at)
    return TokenizedPiece(token_ids, offsets, truncated, seconds, token_type_ids)


def encode_refused(refused: TextRefused) -> list[Buffer]:
    """REFUSED."""
    return [_REFUSED.pack(refused.reason, refused.index, refused.num_tokens, refused.max_tokens)]


def decode_refused(payload: memoryview) -> TextRefused:
    """The inverse of `encode_refused`."""
    reason, index, num_tokens, max_tokens = _REFUSED.unpack(payload)
    return TextRefused(TextRefusal(reason), index, num_tokens=num_tokens, max_tokens=max_tokens)

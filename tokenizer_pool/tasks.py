"""The tasks of a worker: each with its pieces, its answers and their frames. All else is shared.

Besides to tokenize (`messages`), a worker is asked for the tokens of texts one by one (DETAIL), for the texts of ids
(DECODE), for the texts of conversations (CHAT), and for how many tokens a slice of a long text has for certain (SCAN).
Knows nothing of tokenizers and templates.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenizer_pool import messages
from tokenizer_pool.messages import Piece, TokenizedPiece, decode_texts, encode_texts
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

# model (u16), class (u8), whether a generation prompt is added (u8), whether the last message is continued (u8),
# number of conversations (u32); then the conversations as `encode_texts` has them
_CHAT = struct.Struct("<HBBBI")
_RENDERED = struct.Struct("<dI")  # seconds of work, number of texts; then the texts as `encode_texts` has them

# model (u16), class (u8), whether the text ends here, is of a pair, and keeps its end (u8 each), tokens that were
# counted before (u32), characters that stay (u32); then the slice in UTF-8
_SCAN = struct.Struct("<HBBBBII")

# seconds of work, tokens, restart, tokens that are repeated; then the shorter text in UTF-8
_SCANNED = struct.Struct("<dIII")


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
        """The tokens of all texts."""
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


@dataclass(frozen=True, slots=True)
class Chat:
    """How a model's chat template is used."""

    add_generation_prompt: bool = False  # what opens an answer stands at the end
    continue_final_message: bool = False  # the text ends with the last message, without what closes it


@dataclass(frozen=True, slots=True)
class ChatPiece:
    """Some conversations of one request."""

    model: int  # index of the model in this server
    request_class: RequestClass
    conversations: Sequence[str]  # each a JSON list of objects with `role` and `content`, both texts
    chat: Chat

    @property
    def num_items(self) -> int:
        """Conversations."""
        return len(self.conversations)

    @property
    def num_chars(self) -> int:
        """Characters of all conversations."""
        return sum(map(len, self.conversations))


@dataclass(frozen=True, slots=True)
class RenderedPiece:
    """The text of each conversation."""

    texts: list[str]
    seconds: float  # of work in the worker

    @property
    def num_items(self) -> int:
        """Texts."""
        return len(self.texts)


def encode_chat(piece: ChatPiece) -> list[Buffer]:
    """CHAT. Raises UnicodeEncodeError if a conversation holds a lone surrogate."""
    chat = piece.chat
    header = _CHAT.pack(
        piece.model, piece.request_class, chat.add_generation_prompt, chat.continue_final_message, piece.num_items
    )
    return [header, *encode_texts(piece.conversations)]


def decode_chat(payload: memoryview) -> ChatPiece:
    """The inverse of `encode_chat`."""
    model, request_class, adds, continues, num_conversations = _CHAT.unpack_from(payload)
    conversations = decode_texts(payload, _CHAT.size, num_conversations)[1]
    return ChatPiece(model, RequestClass(request_class), conversations, Chat(bool(adds), bool(continues)))


def encode_rendered(piece: RenderedPiece) -> list[Buffer]:
    """RENDERED."""
    return [_RENDERED.pack(piece.seconds, piece.num_items), *encode_texts(piece.texts)]


def decode_rendered(payload: memoryview) -> RenderedPiece:
    """The inverse of `encode_rendered`. Raises struct.error or ValueError."""
    seconds, num_texts = _RENDERED.unpack_from(payload)
    return RenderedPiece(decode_texts(payload, _RENDERED.size, num_texts)[1], seconds)


@dataclass(frozen=True, slots=True)
class ScanPiece:
    """A slice of a long text.

    Where a slice is cut and what follows may change its last tokens, so the next slice begins a few words earlier.
    Where much of a slice makes no token of its own, the answer is a shorter text that reads the same, to go on with.
    """

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
        """The characters of the slice."""
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


AnyPiece = Piece | DetailPiece | DecodePiece | ChatPiece | ScanPiece


AnyAnswer = TokenizedPiece | DetailedPiece | DecodedPiece | RenderedPiece | ScannedPiece


@dataclass(frozen=True, slots=True)
class PieceCodec:
    """How a piece of one type and its answer travel."""

    asked: int  # kinds of frames
    answered: int
    encode_piece: Callable[[Any], list[Buffer]]  # raises UnicodeEncodeError where a text holds a lone surrogate
    decode_piece: Callable[[memoryview], AnyPiece]
    encode_answer: Callable[[Any], list[Buffer]]
    decode_answer: Callable[[memoryview], AnyAnswer]  # raises struct.error or ValueError where it can't be read


CODECS: dict[type[AnyPiece], PieceCodec] = {
    Piece: PieceCodec(
        messages.TOKENIZE,
        messages.TOKENIZED,
        messages.encode_piece,
        messages.decode_piece,
        messages.encode_tokenized,
        messages.decode_tokenized,
    ),
    DetailPiece: PieceCodec(
        messages.DETAIL,
        messages.DETAILED,
        encode_detail,
        decode_detail,
        encode_detailed,
        decode_detailed,
    ),
    DecodePiece: PieceCodec(
        messages.DECODE,
        messages.DECODED,
        encode_decode,
        decode_decode,
        encode_decoded,
        decode_decoded,
    ),
    ChatPiece: PieceCodec(
        messages.CHAT,
        messages.RENDERED,
        encode_chat,
        decode_chat,
        encode_rendered,
        decode_rendered,
    ),
    ScanPiece: PieceCodec(
        messages.SCAN,
        messages.SCANNED,
        encode_scan,
        decode_scan,
        encode_scanned,
        decode_scanned,
    ),
}


BY_KIND = {task.asked: task for task in CODECS.values()}


def first_unencodable(piece: AnyPiece) -> int:
    """Index of the first text or pair with a lone surrogate, -1 where there is none."""
    if isinstance(piece, DecodePiece | ChatPiece):
        return -1
    if isinstance(piece, ScanPiece):
        return 0
    pair_texts = piece.pair_texts if isinstance(piece, Piece) else ()
    for index, texts in enumerate(zip_longest(piece.texts, pair_texts, fillvalue="")):
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            return index
    return -1

"""The tasks of a worker: each with its pieces, its answers and their frames. All else is shared.

A worker is asked for the ids of texts (TOKENIZE), for the tokens of texts one by one (DETAIL), for the texts of ids
(DECODE), for the texts of conversations (CHAT), and for how many tokens a slice of a long text has for certain (SCAN).
Knows nothing of tokenizers and templates.
"""

import enum
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise, zip_longest
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenizer_pool import messages
from tokenizer_pool.messages import Truncation
from wire.frames import Buffer
from wire.parts import DTYPES, Part, in_order, taken_apart
from wire.records import light_dataclass
from wire.vocabulary import RequestClass

# model (u16), class (u8), truncation (u8), number of texts (u32), bytes of the prompt (u32), pairing (u8), whether
# special tokens are added (u8), whether the texts have the prompt already (u8), most tokens of a text (u32, 0 = as many
# as the model takes); then uint32 byte lengths [n], the prompt, the texts, all UTF-8
_TOKENIZE = struct.Struct("<HBBIIBBBI")
# seconds of work (f64), number of texts (u32); then int32 offsets [n+1], ids, the parts as wire.parts has them,
# uint8 truncated [n], and last, where it leaves the arrays aligned, the flags of the parts (u8)
_TOKENIZED = struct.Struct("<dI")

# model (u16), class (u8), whether special tokens are added (u8), number of texts (u32), bytes of the prompt (u32);
# then the texts as `encode_texts` has them
_DETAIL = struct.Struct("<HBBII")

# seconds of work (f64), number of texts (u32); then int32 offsets [n+1], ids, starts, stops and lengths of the tokens'
# texts in characters, uint8 1 where special and 2 where the token continues a word, and the tokens' texts in UTF-8,
# one after another
_DETAILED = struct.Struct("<dI")
_SPECIAL, _SUBWORD = 1, 2
_CLASSES, _TRUNCATIONS = tuple(RequestClass), tuple(Truncation)

# model (u16), class (u8), whether special tokens are left out (u8), number of lists (u32);
# then int32 offsets [n+1], ids
_DECODE = struct.Struct("<HBBI")
_TEXTS = struct.Struct("<dI")  # seconds of work, number of texts; then the texts as `encode_texts` has them

# model (u16), class (u8), number of chats (u32); then the messages of each and what the template gets besides, as
# `encode_texts` has them, and for each chat whether a generation prompt is added, and whether the last message is
# continued (u8 each)
_CHAT = struct.Struct("<HBI")

# model (u16), class (u8), whether the text ends here, is of a pair, and keeps its end (u8 each), tokens that were
# counted before (u32), characters that stay (u32); then the slice in UTF-8
_SCAN = struct.Struct("<HBBBBII")

# seconds of work, tokens, restart, tokens that are repeated; then the shorter text in UTF-8
_SCANNED = struct.Struct("<dIII")


class _Pairing(enum.IntEnum):
    """How the texts of a frame make pairs."""

    NONE = 0
    EACH = 1  # first texts, then as many second ones
    SHARED = 2  # one first text of all pairs, then their second ones: a query goes out once, whatever is ranked by it


@light_dataclass(frozen=True, slots=True)
class TokenizePiece:
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


@light_dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """N texts of one request as flat ids, in the request's order: a worker's answer, or all of them joined."""

    token_ids: NDArray[np.int32]  # [offsets[-1]], special tokens included
    offsets: NDArray[np.int32]  # [N + 1], text i is token_ids[offsets[i] : offsets[i + 1]]
    truncated: NDArray[np.uint8]  # [N], 1 where tokens were cut off
    parts: Mapping[Part, NDArray[Any]] = field(default_factory=dict)  # of each token; what lacks is all zero
    seconds: float = 0.0  # of work in the worker

    @property
    def num_items(self) -> int:
        """N."""
        return len(self.truncated)

    @property
    def num_tokens(self) -> int:
        """The tokens of all texts."""
        return len(self.token_ids)

    def between(self, first: int, stop: int) -> "TokenizedTexts":
        """The texts from `first` on and before `stop`, as views."""
        start, end = int(self.offsets[first]), int(self.offsets[stop])
        offsets = self.offsets[first : stop + 1] - np.int32(start)
        return self._with(lambda values: values[start:end], offsets, self.truncated[first:stop])

    def taken(self, texts: NDArray[np.integer]) -> "TokenizedTexts":
        """The texts at these places, in their order."""
        seqlens = np.diff(self.offsets)[texts]
        offsets = offsets_of(seqlens)
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[texts] - offsets[:-1], seqlens)
        return self._with(lambda values: values[places], offsets, self.truncated[texts])

    def inserted(self, places: NDArray[np.integer], counts: NDArray[np.integer], token_id: int) -> "TokenizedTexts":
        """The texts with this token before those at `places`, without marks; each text so gets `counts` more tokens."""
        inserted = self._with(
            lambda values: np.insert(values, places, 0), offsets_of(np.diff(self.offsets) + counts), self.truncated
        )
        return replace(inserted, token_ids=np.insert(self.token_ids, places, token_id))

    def marked(self, tokens: slice | NDArray[np.bool_], mark: int) -> "TokenizedTexts":
        """The texts with this mark on these tokens."""
        marks = np.array(self.parts.get(Part.MARKS, np.zeros(len(self.token_ids), np.uint8)))
        marks[tokens] |= mark
        return replace(self, parts={**self.parts, Part.MARKS: marks})

    def _with(
        self, change: Callable[[NDArray[Any]], NDArray[Any]], offsets: NDArray[np.int32], truncated: NDArray[np.uint8]
    ) -> "TokenizedTexts":
        """The same change made to all numbers of tokens."""
        parts = {part: change(values) for part, values in self.parts.items()}
        return TokenizedTexts(change(self.token_ids), offsets, truncated, parts)


def offsets_of(seqlens: NDArray[np.integer]) -> NDArray[np.int32]:
    """The offsets at which each of N lists begins and ends in one row of all of them, int32 [N + 1]."""
    offsets = np.zeros(len(seqlens) + 1, np.int32)
    np.cumsum(seqlens, out=offsets[1:])
    return offsets


def encode_tokenize(piece: TokenizePiece) -> list[Buffer]:
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


def decode_tokenize(payload: memoryview) -> TokenizePiece:
    """The inverse of `encode_tokenize`."""
    head = _TOKENIZE.unpack_from(payload)
    model, request_class, truncation, num_texts, prompt_bytes, pairing, adds, is_prompted, limit = head
    prompt, texts = decode_texts(payload, _TOKENIZE.size, num_texts, prompt_bytes)
    pair_texts: list[str] = []
    if pairing:
        texts, pair_texts = _unpaired(texts, _Pairing(pairing))
    return TokenizePiece(
        model,
        _CLASSES[request_class],
        _TRUNCATIONS[truncation],
        texts,
        prompt,
        pair_texts or (),
        limit or None,
        bool(adds),
        bool(is_prompted),
    )


def _paired(piece: TokenizePiece) -> tuple[_Pairing, Sequence[str]]:
    """The texts of a piece of pairs as its frame has them."""
    if piece.texts.count(piece.texts[0]) == len(piece.texts):
        return _Pairing.SHARED, [piece.texts[0], *piece.pair_texts]
    return _Pairing.EACH, [*piece.texts, *piece.pair_texts]


def _unpaired(texts: list[str], pairing: _Pairing) -> tuple[list[str], list[str]]:
    """The inverse of `_paired`: first and second texts."""
    if pairing is _Pairing.SHARED:
        return texts[:1] * (len(texts) - 1), texts[1:]
    return texts[: len(texts) // 2], texts[len(texts) // 2 :]


def encode_tokenized(piece: TokenizedTexts) -> list[Buffer]:
    """TOKENIZED."""
    header = _TOKENIZED.pack(piece.seconds, len(piece.truncated))
    parts = [values.tobytes() for values in in_order(piece.parts)] if piece.parts else ()
    truncated, flags = piece.truncated.tobytes(), bytes([sum(piece.parts)])
    return [header, piece.offsets.tobytes(), piece.token_ids.tobytes(), *parts, truncated, flags]


def decode_tokenized(payload: memoryview) -> TokenizedTexts:
    """The inverse of `encode_tokenized`; the arrays are views of the payload."""
    seconds, num_texts = _TOKENIZED.unpack_from(payload)
    offsets = np.frombuffer(payload, np.int32, num_texts + 1, _TOKENIZED.size)
    ids_at = _TOKENIZED.size + offsets.nbytes
    token_ids = np.frombuffer(payload, np.int32, int(offsets[-1]), ids_at)
    truncated_at, flags = len(payload) - 1 - num_texts, payload[-1]
    truncated = np.frombuffer(payload, np.uint8, num_texts, truncated_at)
    parts: dict[Part, NDArray[Any]] = {}
    if flags:
        found = taken_apart(payload[ids_at + token_ids.nbytes : truncated_at], flags, num_texts, len(token_ids))
        parts = {part: np.frombuffer(values, DTYPES[part]) for part, values in found.items()}
    return TokenizedTexts(token_ids, offsets, truncated, parts, seconds)


class Token(NamedTuple):
    """One token of a text. `start` and `stop` count characters of the text with its prompt before it."""

    token_id: int
    text: str  # the part of the text that it stands for; the name of a special one
    is_special: bool  # whether it was put around the text, and is no part of it
    start: int | None  # None where it is special
    stop: int | None
    is_subword: bool = False  # whether it continues a word; never where special


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


@dataclass(frozen=True, slots=True)
class TextsPiece:
    """The text of each list of ids, or of each conversation."""

    texts: list[str]
    seconds: float  # of work in the worker

    @property
    def num_items(self) -> int:
        """Texts."""
        return len(self.texts)


def encode_answer_texts(piece: TextsPiece) -> list[Buffer]:
    """DECODED or RENDERED."""
    return [_TEXTS.pack(piece.seconds, piece.num_items), *encode_texts(piece.texts)]


def decode_answer_texts(payload: memoryview) -> TextsPiece:
    """The inverse of `encode_answer_texts`. Raises struct.error or ValueError."""
    seconds, num_texts = _TEXTS.unpack_from(payload)
    return TextsPiece(decode_texts(payload, _TEXTS.size, num_texts)[1], seconds)


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, and how the model's chat template is used for it."""

    messages: str  # a JSON list of objects with `role` and `content`, both texts
    add_generation_prompt: bool = False  # what opens an answer stands at the end
    continue_final_message: bool = False  # the text ends with the last message, without what closes it
    template_kwargs: str = "{}"  # a JSON object: what else the template gets, by the names that it uses

    @property
    def num_chars(self) -> int:
        """Characters of all that the template gets."""
        return len(self.messages) + len(self.template_kwargs)


@dataclass(frozen=True, slots=True)
class ChatPiece:
    """Some conversations of one request."""

    model: int  # index of the model in this server
    request_class: RequestClass
    chats: Sequence[Chat]

    @property
    def num_items(self) -> int:
        """Conversations."""
        return len(self.chats)

    @property
    def num_chars(self) -> int:
        """Characters of all conversations."""
        return sum(chat.num_chars for chat in self.chats)


def encode_chat(piece: ChatPiece) -> list[Buffer]:
    """CHAT. Raises UnicodeEncodeError if a conversation holds a lone surrogate."""
    header = _CHAT.pack(piece.model, piece.request_class, piece.num_items)
    texts = [*(chat.messages for chat in piece.chats), *(chat.template_kwargs for chat in piece.chats)]
    flags = [(chat.add_generation_prompt, chat.continue_final_message) for chat in piece.chats]
    return [header, *encode_texts(texts), bytes(chain.from_iterable(flags))]


def decode_chat(payload: memoryview) -> ChatPiece:
    """The inverse of `encode_chat`."""
    model, request_class, num_chats = _CHAT.unpack_from(payload)
    texts = decode_texts(payload, _CHAT.size, 2 * num_chats)[1]
    flags = map(bool, payload[len(payload) - 2 * num_chats :])
    each = zip(texts[:num_chats], flags, flags, texts[num_chats:], strict=True)
    return ChatPiece(model, RequestClass(request_class), [Chat(*parts) for parts in each])


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
    num_items: ClassVar[int] = 1

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
    num_items: ClassVar[int] = 1


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


AnyPiece = TokenizePiece | DetailPiece | DecodePiece | ChatPiece | ScanPiece
AnyAnswer = TokenizedTexts | DetailedPiece | TextsPiece | ScannedPiece


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
    TokenizePiece: PieceCodec(
        messages.TOKENIZE, messages.TOKENIZED, encode_tokenize, decode_tokenize, encode_tokenized, decode_tokenized
    ),
    DetailPiece: PieceCodec(
        messages.DETAIL, messages.DETAILED, encode_detail, decode_detail, encode_detailed, decode_detailed
    ),
    DecodePiece: PieceCodec(
        messages.DECODE, messages.DECODED, encode_decode, decode_decode, encode_answer_texts, decode_answer_texts
    ),
    ChatPiece: PieceCodec(
        messages.CHAT, messages.RENDERED, encode_chat, decode_chat, encode_answer_texts, decode_answer_texts
    ),
    ScanPiece: PieceCodec(messages.SCAN, messages.SCANNED, encode_scan, decode_scan, encode_scanned, decode_scanned),
}


BY_KIND = {codec.asked: codec for codec in CODECS.values()}


def first_unencodable(piece: AnyPiece) -> int:
    """Index of the first text or pair with a lone surrogate, -1 where there is none."""
    if isinstance(piece, DecodePiece | ChatPiece):
        return -1
    if isinstance(piece, ScanPiece):
        return 0
    pair_texts = piece.pair_texts if isinstance(piece, TokenizePiece) else ()
    for index, texts in enumerate(zip_longest(piece.texts, pair_texts, fillvalue="")):
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            return index
    return -1

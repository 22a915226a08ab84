"""What a worker can be asked to do: each task with its pieces, its answers and their frames. All else is shared."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from tokenizer_pool import chat, details, messages
from tokenizer_pool.chat import ChatPiece, RenderedPiece
from tokenizer_pool.details import DecodedPiece, DecodePiece, DetailedPiece, DetailPiece
from tokenizer_pool.long_texts import scan
from tokenizer_pool.long_texts.scan import ScannedPiece, ScanPiece
from tokenizer_pool.messages import Piece, TokenizedPiece
from wire.frames import Buffer

AnyPiece = Piece | DetailPiece | DecodePiece | ChatPiece | ScanPiece
AnyAnswer = TokenizedPiece | DetailedPiece | DecodedPiece | RenderedPiece | ScannedPiece


@dataclass(frozen=True, slots=True)
class Task:
    """How a piece of one type and its answer travel."""

    asked: int  # kinds of frames
    answered: int
    encode_piece: Callable[[Any], list[Buffer]]  # raises UnicodeEncodeError where a text holds a lone surrogate
    decode_piece: Callable[[memoryview], AnyPiece]
    encode_answer: Callable[[Any], list[Buffer]]
    decode_answer: Callable[[memoryview], AnyAnswer]  # raises struct.error or ValueError where it can't be read


TASKS: dict[type[AnyPiece], Task] = {
    Piece: Task(
        messages.TOKENIZE,
        messages.TOKENIZED,
        messages.encode_piece,
        messages.decode_piece,
        messages.encode_tokenized,
        messages.decode_tokenized,
    ),
    DetailPiece: Task(
        messages.DETAIL,
        messages.DETAILED,
        details.encode_detail,
        details.decode_detail,
        details.encode_detailed,
        details.decode_detailed,
    ),
    DecodePiece: Task(
        messages.DECODE,
        messages.DECODED,
        details.encode_decode,
        details.decode_decode,
        details.encode_decoded,
        details.decode_decoded,
    ),
    ChatPiece: Task(
        messages.CHAT,
        messages.RENDERED,
        chat.encode_chat,
        chat.decode_chat,
        chat.encode_rendered,
        chat.decode_rendered,
    ),
    ScanPiece: Task(
        messages.SCAN,
        messages.SCANNED,
        scan.encode_scan,
        scan.decode_scan,
        scan.encode_scanned,
        scan.decode_scanned,
    ),
}
BY_KIND = {task.asked: task for task in TASKS.values()}


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

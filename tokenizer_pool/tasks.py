"""What a worker can be asked to do: each task with its pieces, its answers and their frames. All else is shared."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizer_pool import details, messages
from tokenizer_pool.details import DecodedPiece, DecodePiece, DetailedPiece, DetailPiece
from tokenizer_pool.messages import Piece, TokenizedPiece
from wire.frames import Buffer

AnyPiece = Piece | DetailPiece | DecodePiece
AnyAnswer = TokenizedPiece | DetailedPiece | DecodedPiece


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
}
BY_KIND = {task.asked: task for task in TASKS.values()}

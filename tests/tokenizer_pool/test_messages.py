"""What frontends and workers say to each other survives the way."""

from typing import Any

import numpy as np
import pytest

from tokenizer_pool import messages
from tokenizer_pool.messages import TextRefusal, TextRefused, Truncation
from tokenizer_pool.tasks import (
    CODECS,
    Chat,
    ChatPiece,
    DecodePiece,
    DetailedPiece,
    DetailPiece,
    ScannedPiece,
    ScanPiece,
    TextsPiece,
    Token,
    TokenizedTexts,
    TokenizePiece,
    encode_tokenize,
    encode_tokenized,
)
from wire.frames import Buffer
from wire.parts import DTYPES, OF_SEQUENCES, Part
from wire.vocabulary import RequestClass

BULK, QUERY = RequestClass.BULK, "what is a pair? 👍"
ODD = ["", "zwölf 👍", "\x00", "x" * 70_000]
SPECIAL = Token(101, "[CLS]", True, None, None)
WORDS = [Token(7, "zwölf", False, 0, 5), Token(8, "", False, 5, 5), Token(9, "👍", False, 5, 6, is_subword=True)]


def sent(parts: list[Buffer]) -> memoryview:
    return memoryview(b"".join(bytes(part) for part in parts))


def array(*values: int, dtype: Any = np.int32) -> Any:
    return np.array(values, dtype)


def tokenized(parts: dict[Part, Any]) -> TokenizedTexts:
    return TokenizedTexts(array(101, 7, 102), array(0, 1, 3), array(1, 0, dtype=np.uint8), parts, 0.25)


def fields(piece: Any) -> dict[str, Any]:
    values = {name: getattr(piece, name) for name in piece.__slots__}
    values |= {part.name: (of_part.dtype, of_part.tolist()) for part, of_part in values.pop("parts", {}).items()}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


@pytest.mark.parametrize(
    "piece",
    [
        TokenizePiece(3, RequestClass.INTERACTIVE, Truncation.NONE, ["one"]),
        TokenizePiece(3, BULK, Truncation.LEFT, ODD, "prömpt: ", (), 70_000, False, True),
        TokenizePiece(3, BULK, Truncation.RIGHT, [QUERY], "", ["a document"]),
        *(
            TokenizePiece(3, BULK, Truncation.LEFT, firsts, "prömpt: ", ODD[1:])
            for firsts in ([QUERY] * 3, [QUERY, "", QUERY], ["", "", ""])
        ),
        DetailPiece(3, BULK, ["one"]),
        DetailPiece(3, BULK, ODD, "prömpt: ", False),
        DecodePiece(3, BULK, array(7, 8, 9), array(0, 2, 2, 3), False),
        ChatPiece(
            3, BULK, [Chat('[{"role":"user","content":"é"}]', True, False, '{"a": "é"}'), Chat("[]", False, True)]
        ),
        *(
            ScanPiece(3, BULK, "é 👍", 7, flag == "end", flag == "pair", flag == "keep", 2)
            for flag in ("end", "pair", "keep")
        ),
    ],
    ids=lambda piece: type(piece).__name__,
)
def test_a_piece(piece: Any) -> None:
    codec = CODECS[type(piece)]
    assert fields(codec.decode_piece(sent(codec.encode_piece(piece)))) == fields(piece)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (TokenizePiece, tokenized({})),
        (
            TokenizePiece,
            tokenized({part: array(0, 8, 1, dtype=DTYPES[part]) for part in Part if part not in OF_SEQUENCES}),
        ),
        (DetailPiece, DetailedPiece([[]], 0.25)),
        (DetailPiece, DetailedPiece([[SPECIAL, *WORDS], [], [WORDS[2], SPECIAL]], 0.25)),
        *((asked, TextsPiece(["", "zwölf 👍"], 0.5)) for asked in (DecodePiece, ChatPiece)),
        (ScanPiece, ScannedPiece(5, 4, 3, 0.5, "kürzer")),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, type) else value.__name__,
)
def test_an_answer(asked: Any, answer: Any) -> None:
    codec = CODECS[asked]
    assert fields(codec.decode_answer(sent(codec.encode_answer(answer)))) == fields(answer)


def test_the_query_of_many_documents_is_sent_once() -> None:
    documents = [str(number) for number in range(1000)]
    piece = TokenizePiece(0, BULK, Truncation.RIGHT, [QUERY] * 1000, "", documents)
    assert bytes(sent(encode_tokenize(piece))).count(QUERY.encode()) == 1


def test_types_that_are_all_zero_cost_one_byte() -> None:
    """A frame of one text, as nearly all are: what it had before there were types, and a byte that says so."""
    piece = TokenizedTexts(np.zeros(20, np.int32), array(0, 20), array(0, dtype=np.uint8), seconds=0.25)
    assert len(sent(encode_tokenized(piece))) == 12 + 4 * 2 + 4 * 20 + 1 + 1


@pytest.mark.parametrize("index", [-1, 0, 2047])
def test_a_refusal(index: int) -> None:
    refused = TextRefused(TextRefusal.TOO_LONG, index, num_tokens=300, max_tokens=256)
    decoded = messages.decode_refused(sent(messages.encode_refused(refused)))
    found = (decoded.reason, decoded.index, decoded.num_tokens, decoded.max_tokens)
    assert found == (TextRefusal.TOO_LONG, index, 300, 256)

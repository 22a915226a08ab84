"""What frontends and workers say to each other survives the way."""

import numpy as np
import pytest

import engine.types
from tokenizer_pool import messages
from tokenizer_pool.messages import (
    Piece,
    TextRefusal,
    TextRefused,
    TokenizedPiece,
    Truncation,
)
from tokenizer_pool.token_ids import PROMPT_TOKEN
from wire.frames import Buffer
from wire.vocabulary import RequestClass


def sent(parts: list[Buffer]) -> memoryview:
    return memoryview(b"".join(bytes(part) for part in parts))


@pytest.mark.parametrize("texts", [["one"], ["", "zwölf 👍", "\x00", "x" * 70_000]])
def test_a_piece(texts: list[str]) -> None:
    piece = Piece(3, RequestClass.BULK, Truncation.LEFT, texts, "prömpt: ")
    assert messages.decode_piece(sent(messages.encode_piece(piece))) == piece


QUERY = "what is a pair? 👍"


@pytest.mark.parametrize("texts", [[QUERY] * 3, [QUERY, "", QUERY], ["", "", ""]])
def test_a_piece_of_pairs(texts: list[str]) -> None:
    pairs = ["", "zwölf", "x" * 70_000]
    piece = Piece(3, RequestClass.BULK, Truncation.LEFT, texts, "prömpt: ", pairs)
    assert messages.decode_piece(sent(messages.encode_piece(piece))) == piece


def test_the_limit_of_a_request_and_texts_without_special_tokens() -> None:
    piece = Piece(
        3, RequestClass.BULK, Truncation.LEFT, ["a"], max_tokens=70_000, add_special_tokens=False, is_prompted=True
    )
    assert messages.decode_piece(sent(messages.encode_piece(piece))) == piece


def test_a_single_pair() -> None:
    piece = Piece(3, RequestClass.INTERACTIVE, Truncation.RIGHT, [QUERY], "", ["a document"])
    assert messages.decode_piece(sent(messages.encode_piece(piece))) == piece


def test_the_query_of_many_documents_is_sent_once() -> None:
    documents = [str(number) for number in range(1000)]
    piece = Piece(0, RequestClass.BULK, Truncation.RIGHT, [QUERY] * 1000, "", documents)
    assert bytes(sent(messages.encode_piece(piece))).count(QUERY.encode()) == 1


def test_a_tokenized_piece() -> None:
    ids = np.array([101, 7, 102, 101, 102], np.int32)
    piece = TokenizedPiece(ids, np.array([0, 3, 5], np.int32), np.array([1, 0], np.uint8), 0.25)
    decoded = messages.decode_tokenized(sent(messages.encode_tokenized(piece)))
    assert decoded.token_ids.tolist() == ids.tolist()
    assert decoded.offsets.tolist() == [0, 3, 5]
    assert decoded.truncated.tolist() == [1, 0]
    assert decoded.seconds == 0.25
    assert decoded.token_type_ids is None


def test_types_of_tokens() -> None:
    ids, types = np.array([101, 7, 102], np.int32), np.array([0, 1, PROMPT_TOKEN], np.int32)
    piece = TokenizedPiece(ids, np.array([0, 1, 3], np.int32), np.array([1, 0], np.uint8), 0.25, types)
    decoded = messages.decode_tokenized(sent(messages.encode_tokenized(piece)))
    assert decoded.token_type_ids is not None
    assert decoded.token_type_ids.tolist() == types.tolist()
    assert (decoded.token_ids.tolist(), decoded.truncated.tolist()) == (ids.tolist(), [1, 0])


def test_types_that_are_all_zero_cost_one_byte() -> None:
    """A frame of one text, as nearly all are: what it had before there were types, and a byte that says so."""
    piece = TokenizedPiece(np.zeros(20, np.int32), np.array([0, 20], np.int32), np.zeros(1, np.uint8), 0.25)
    assert len(sent(messages.encode_tokenized(piece))) == 12 + 4 * 2 + 4 * 20 + 1 + 1


def test_engines_have_the_same_number_for_a_token_of_a_prompt() -> None:
    assert PROMPT_TOKEN == engine.types.PROMPT_TOKEN


@pytest.mark.parametrize("index", [-1, 0, 2047])
def test_a_refusal(index: int) -> None:
    refused = TextRefused(TextRefusal.TOO_LONG, index, num_tokens=300, max_tokens=256)
    decoded = messages.decode_refused(sent(messages.encode_refused(refused)))
    assert (decoded.reason, decoded.index, decoded.num_tokens, decoded.max_tokens) == (
        TextRefusal.TOO_LONG,
        index,
        300,
        256,
    )

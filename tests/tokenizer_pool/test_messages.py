"""What frontends and workers say to each other survives the way."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from tokenizer_pool import messages
from tokenizer_pool.messages import (
    Piece,
    Refusal,
    TextRefused,
    TokenizedPiece,
    TokenizerSpec,
    TokenizerStart,
    Truncation,
)
from wire.frames import Buffer
from wire.vocabulary import RequestClass


def sent(parts: list[Buffer]) -> memoryview:
    return memoryview(b"".join(bytes(part) for part in parts))


def test_what_a_worker_is_told_at_its_start() -> None:
    tokenizers = [
        TokenizerSpec(folder="/models/x", max_seqlen=512, do_lower_case=True, vocab_size=30522),
        TokenizerSpec(folder="/models/y", max_seqlen=8192),
    ]
    start = TokenizerStart(listener_fd=7, models=["x", "y"], tokenizers=tokenizers)
    spec = json.loads(json.dumps({"title": "what every child is told", **asdict(start)}))
    assert TokenizerStart.from_spec(spec) == start


@pytest.mark.parametrize("texts", [["one"], ["", "zwölf 👍", "\x00", "x" * 70_000]])
def test_a_piece(texts: list[str]) -> None:
    piece = Piece(3, RequestClass.BULK, Truncation.LEFT, texts, "prömpt: ")
    assert messages.decode_piece(sent(messages.encode_piece(piece))) == piece


def test_a_tokenized_piece() -> None:
    ids = np.array([101, 7, 102, 101, 102], np.int32)
    piece = TokenizedPiece(ids, np.array([0, 3, 5], np.int32), np.array([1, 0], np.uint8), 0.25)
    decoded = messages.decode_tokenized(sent(messages.encode_tokenized(piece)))
    assert decoded.token_ids.tolist() == ids.tolist()
    assert decoded.offsets.tolist() == [0, 3, 5]
    assert decoded.truncated.tolist() == [1, 0]
    assert decoded.seconds == 0.25


@pytest.mark.parametrize("index", [-1, 0, 2047])
def test_a_refusal(index: int) -> None:
    refused = TextRefused(Refusal.TOO_LONG, index, num_tokens=300, max_tokens=256)
    decoded = messages.decode_refused(sent(messages.encode_refused(refused)))
    assert (decoded.reason, decoded.index, decoded.num_tokens, decoded.max_tokens) == (
        Refusal.TOO_LONG,
        index,
        300,
        256,
    )

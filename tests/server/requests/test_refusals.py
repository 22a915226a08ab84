"""What the tokenizer pool refuses is told with its number and its field."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.requests.refusals import text_error
from tokenizer_pool.messages import TextRefusal, TextRefused


@pytest.mark.holds("Limits")
@pytest.mark.parametrize(
    ("refused", "is_pair", "message"),
    [
        (
            TextRefused(TextRefusal.TOO_MUCH, -1, max_chars=134_217_728),
            True,
            "documents is too large for one request, which may have 134217728 characters together, a query counted "
            "with each document; send fewer items",
        ),
        (
            TextRefused(TextRefusal.TOO_MUCH, 2, max_chars=1_048_576),
            False,
            "documents[2] is too large for one request, which may have 1048576 characters together, a prompt counted "
            "with each text; send fewer items",
        ),
        (
            TextRefused(TextRefusal.UNCUT, 1, max_tokens=16),
            False,
            "documents[1] has 262144 characters without a place to cut, before there are enough tokens for the limit "
            "of 16",
        ),
    ],
)
def test_a_text_or_request_that_is_too_large(refused: TextRefused, is_pair: bool, message: str) -> None:
    def name_of(index: int) -> str:
        return f"documents[{index}]" if index >= 0 else "documents"

    error = text_error(refused, name_of, cast(Any, SimpleNamespace(vocab_size=9)), is_pair=is_pair)
    assert (error.message, error.param) == (message, message.split()[0])

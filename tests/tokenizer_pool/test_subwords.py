"""Which tokens continue a word: equal spans in test_token_labels.py say that it is as transformers has it."""

from pathlib import Path

from tests.tokenizer_pool.builders import bert_folder, roberta
from tokenizer_pool.details import DetailedPiece, Token, decode_detailed, encode_detailed
from tokenizer_pool.messages import TokenizerSpec
from tokenizer_pool.tokenizer import Subwords, Tokenizer


def test_word_piece_marks_them(tmp_path: Path) -> None:
    tokenizer = Tokenizer(TokenizerSpec(folder=str(bert_folder(tmp_path)), max_seqlen=16))
    (tokens,) = tokenizer.details(["xyz-harbour ☃☃"]).tokens

    assert "".join(token.text for token in tokens if token.is_subword) == "yz"
    assert not any(token.is_subword for token in tokens if token.is_special)
    assert [token.is_subword for token in tokens if "-" in token.text] == [False]  # no space before, and no ## either


def test_others_are_told_by_spaces() -> None:
    subwords = Subwords(roberta())

    assert subwords.continues("ab", 50, "b", 1, 2)
    assert not subwords.continues("a b", 50, "Ġb", 2, 3)
    assert not subwords.continues("a b", 50, "Ġb", 1, 3)  # where the space is the token's
    assert not subwords.continues("ab", 50, "a", 0, 1)


def test_it_goes_over_the_wire() -> None:
    tokens = [
        Token(0, "[CLS]", True, None, None),
        Token(1, "ha", False, 0, 2),
        Token(2, "ven", False, 2, 5, is_subword=True),
    ]
    payload = memoryview(b"".join(bytes(part) for part in encode_detailed(DetailedPiece([tokens], 0.5))))
    assert decode_detailed(payload).tokens == [tokens]

"""Which tokens continue a word, as transformers' pipeline for token classification tells it.

Tokenizers that mark such tokens (WordPiece's ##) are believed; with others a token continues a word where no space is
next to its first character.
"""

import tokenizers

_UNKNOWN = "<unk>"  # of the kind of tokenizer that does not say what it calls it


class Subwords:
    """Of one tokenizer."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        model = backend.model
        self._are_marked = bool(getattr(model, "continuing_subword_prefix", None))
        self._unknown_id = backend.token_to_id(getattr(model, "unk_token", None) or _UNKNOWN)

    def continues(self, text: str, token_id: int, name: str, start: int, stop: int) -> bool:
        """Whether the token of that name, which stands for text[start:stop], continues a word."""
        if token_id == self._unknown_id:
            return False
        if self._are_marked:
            return len(name) != stop - start
        return start > 0 and " " not in text[start - 1 : start + 1]

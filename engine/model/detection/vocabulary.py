"""Finds ids of tokens by their text, in tokenizer.json and the files beside it.

Does not use the tokenizers library: the supervisor reads any folder, and should neither keep a tokenizer in memory nor
run a parser that can panic on a broken file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.model.json_files import Json, object_in, read_optional
from engine.types import ModelError

# usual names, if tokenizer_config.json does not name them
USUAL = {
    "bos_token": ("<s>", "<bos>"),
    "cls_token": ("[CLS]", "<s>"),
    "eos_token": ("</s>", "<eos>"),
    "mask_token": ("[MASK]", "<mask>"),
    "pad_token": ("[PAD]", "<pad>"),
    "sep_token": ("[SEP]", "</s>"),
    "unk_token": ("[UNK]", "<unk>"),
}


class Vocabulary:
    """The vocabulary of one folder. Reading a large one takes some tenths of a second."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelError if tokenizer.json is missing or wrong."""
        if not (folder / "tokenizer.json").is_file():
            raise ModelError(f"{folder} has no tokenizer.json; save the model with a fast tokenizer")
        tokenizer = read_optional(folder / "tokenizer.json")
        self._config = {
            **read_optional(folder / "special_tokens_map.json"),
            **read_optional(folder / "tokenizer_config.json"),
        }
        try:
            self._ids = _ids(tokenizer, object_in(self._config, "added_tokens_decoder"))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise ModelError("the vocabulary in tokenizer.json has an unknown form") from error

    def id_of(self, token: str) -> int | None:
        """The id of a token; None if the text is not a single token."""
        found = self._ids.get(token)
        return found if type(found) is int and found >= 0 else None  # the file can hold anything

    def needed(self, token: str) -> int:
        """The id of a token. Raises ModelError if there is no such token."""
        found = self.id_of(token)
        if found is None:
            raise ModelError(f"tokenizer.json has no token {token!r}, which the model needs")
        return found

    def special(self, name: str) -> int | None:
        """The id of a special token by its role: "mask_token", …"""
        token = self._config.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        named = (text,) if isinstance(text, str) else USUAL[name]
        return next((found for each in named if (found := self.id_of(each)) is not None), None)


def surrounding_ids(folder: Path) -> list[int]:
    """Ids of the special tokens that the folder's tokenizer puts around every text, in no order."""
    return list(_around(object_in(read_optional(folder / "tokenizer.json"), "post_processor")))


def _ids(tokenizer: Json, listed: Json) -> dict[str, int]:
    """Ids by token: those of the model, overridden by added tokens."""
    vocab = object_in(tokenizer, "model").get("vocab") or {}
    if isinstance(vocab, list):  # Unigram: pieces with their scores
        vocab = {piece: index for index, (piece, _) in enumerate(vocab)}
    added = {token["content"]: int(token["id"]) for token in tokenizer.get("added_tokens") or ()}
    named = {token["content"]: int(index) for index, token in listed.items()}
    return {**vocab, **named, **added}


def _around(processor: Json) -> Iterator[int]:
    """Ids that a post-processor adds; it may consist of several."""
    for part in processor.get("processors") or ():
        if isinstance(part, dict):
            yield from _around(part)
    named = processor.get("special_tokens")  # of a template: name -> {"ids": [...]}
    for token in named.values() if isinstance(named, dict) else ():
        yield from _numbers(token.get("ids") if isinstance(token, dict) else ())
    for name in ("cls", "sep"):  # of BERT's and RoBERTa's: [text, id]
        yield from _numbers(processor.get(name))


def _numbers(values: Any) -> Iterator[int]:
    yield from (value for value in (values if isinstance(values, list) else ()) if type(value) is int)

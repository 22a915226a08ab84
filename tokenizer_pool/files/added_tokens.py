"""Tokens that the files beside tokenizer.json name, added as transformers 5 adds them."""

from collections.abc import Collection, Iterator
from pathlib import Path

import tokenizers
from tokenizers import AddedToken

from tokenizer_pool.files.config_files import Config, read_config

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def add_tokens(tokenizer: tokenizers.Tokenizer, config: Config, folder: Path) -> None:
    """Add the tokens that the other files name and tokenizer.json does not, in transformers' order."""
    listed = config.get("added_tokens_decoder")
    if listed is None:  # A folder with such a list is of the newer kind, where the two other files are not read.
        config = config | read_config(folder / "special_tokens_map.json")
    known = {token.content: repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
    named = [_token(value, special=True) for value in _named_tokens(config)]
    if listed is None:
        old = _added_before(folder, {token.content for token in named})
        tokens = [token for token in old if token.content not in known]
    else:
        newer = (_token(listed[index]) for index in sorted(listed, key=int))
        tokens = [token for token in newer if known.get(token.content) != repr(token)]  # its flags hold
    for token in tokens:
        known[token.content] = repr(token)
        tokenizer.add_tokens([token])
    for token in named:
        if token.content not in known:
            known[token.content] = repr(token)
            tokenizer.add_tokens([token])


def _added_before(folder: Path, special: Collection[str]) -> list[AddedToken]:
    """The tokens of added_tokens.json, a file of older versions, in the order of their ids."""
    ids = read_config(folder / "added_tokens.json")
    return [
        AddedToken(content, special=content in special, normalized=content not in special)
        for content in sorted(ids, key=lambda content: int(ids[content]))
    ]


def _named_tokens(config: Config) -> Iterator[str | Config]:
    yield from (config[name] for name in NAMED_TOKENS if config.get(name))
    more = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    yield from more.values() if isinstance(more, dict) else more
    others = (name for name in config if name.endswith("_token") and name not in NAMED_TOKENS)
    yield from (config[name] for name in others if isinstance(config[name], str))


def _token(value: str | Config, *, special: bool = False) -> AddedToken:
    if isinstance(value, str):
        return AddedToken(value, special=special)
    flags = {name: value[name] for name in ("single_word", "lstrip", "rstrip", "normalized") if name in value}
    return AddedToken(value["content"], special=bool(value.get("special", special)), **flags)

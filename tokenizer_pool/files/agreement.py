"""Refuses folders whose tokenizer_config.json names other tokens than tokenizer.json uses.

transformers 4 takes those of tokenizer.json, and transformers 5 builds some classes anew with those of the
configuration (their __init__ in src/transformers/models/*/tokenization_*.py). So the files alone don't say which ids a
model was trained with. A token that the configuration does not name is that of tokenizer.json, as in transformers 4;
so is the length of the longest word of a WordPiece, which only transformers 5 sets to 100.
"""

import json
from pathlib import Path

import tokenizers
from tokenizers import models

from tokenizer_pool.files.config_files import Config, TokenizerError, read_config

_CLS_SEP, _BOS_EOS = ("cls_token", "sep_token"), ("bos_token", "eos_token")
_AROUND = {  # class -> the names of the tokens before and after a text
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer"), _CLS_SEP),
    **dict.fromkeys(("RobertaTokenizer", "LongformerTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer"), _CLS_SEP),
    **dict.fromkeys(("XLMRobertaTokenizer", "CamembertTokenizer"), _BOS_EOS),
}
_SPACES = ("Qwen2Tokenizer", "XLMRobertaTokenizer", "CamembertTokenizer")  # transformers 5 alone reads add_prefix_space


def check(tokenizer: tokenizers.Tokenizer, config: Config, folder: Path, name: str) -> None:
    """`tokenizer` is tokenizer.json as it stands, `name` its class without "Fast". Raises TokenizerError."""
    is_newer = config.get("added_tokens_decoder") is not None  # then transformers reads no other file
    named = config if is_newer else config | read_config(folder / "special_tokens_map.json")
    empty = tokenizer.encode("")  # padded, if tokenizer.json says so
    around = [token for token, is_read in zip(empty.tokens, empty.attention_mask, strict=True) if is_read]
    if name in _AROUND and len(around) > 1:
        for role, token in zip(_AROUND[name], (around[0], around[-1]), strict=True):
            _check(folder, named, role, token, f"puts {token!r} around texts")
    if name in _AROUND and isinstance(tokenizer.model, models.WordPiece):
        unknown = tokenizer.model.unk_token
        _check(folder, named, "unk_token", unknown, f"has {unknown!r} for what it does not know")
    if name in _SPACES:
        for found in _spaces(tokenizer):
            if bool(config.get("add_prefix_space", found)) is not found:
                raise _disagreement(folder, "add_prefix_space", f"has {str(found).lower()}")


def _check(folder: Path, named: Config, role: str, token: str, does: str) -> None:
    given = named.get(role)
    text = given["content"] if isinstance(given, dict) else given
    if text is not None and text != token:
        raise _disagreement(folder, f"{role} ({str(text)[:40]!r})", does)


def _disagreement(folder: Path, key: str, does: str) -> TokenizerError:
    return TokenizerError(
        f"{folder}: {key} in tokenizer_config.json or special_tokens_map.json is not what tokenizer.json says, "
        f"which {does}; transformers 4 and 5 differ in which they take: correct the one that is wrong"
    )


def _spaces(tokenizer: tokenizers.Tokenizer) -> list[bool]:
    """add_prefix_space of the steps inside the pre-tokenizer that have it, and whether a Metaspace puts one."""
    state = json.loads(tokenizer.pre_tokenizer.__getstate__()) if tokenizer.pre_tokenizer else {}
    steps = state.get("pretokenizers", ())
    in_bytes = [step["add_prefix_space"] for step in steps if "add_prefix_space" in step]
    return in_bytes + [step["prepend_scheme"] != "never" for step in (state, *steps) if "prepend_scheme" in step]

"""Makes a tokenizer out of a model folder's files, by the tokenizers library alone.

tokenizer.json is taken as it stands, as transformers 4 and text-embeddings-inference take it: models were trained with
its ids. What tokenizer_config.json says goes over it where transformers 4.57 lets it, see `_take_flags`. It also may
name more tokens, see `add_tokens`, and special tokens around texts, see `special_tokens`; sentence-transformers may put
a Lowercase in front. transformers 5 builds normalizer and pre-tokenizer of many classes anew, whatever tokenizer.json
says of them. What it has built so it saves, and then tokenizer.json is right again.

A folder whose tokenizer_config.json names other tokens than tokenizer.json uses is refused. transformers 4 takes those
of tokenizer.json, and transformers 5 builds some classes anew with those of the configuration (their __init__ in
src/transformers/models/*/tokenization_*.py). So the files alone don't say which ids a model was trained with. A token
that the configuration does not name is that of tokenizer.json, as in transformers 4; so is the length of the longest
word of a WordPiece, which only transformers 5 sets to 100.
"""

import codecs
import json
from collections.abc import Collection, Iterator
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors

from tokenizer_pool.special_tokens import Ends, ends
from wire.files import read_whole
from wire.placeholder import placeholder
from wire.tokenizer_files import Config, TokenizerError, is_of_transformers_5, read_config, tokenizer_class

_CLS_SEP, _BOS_EOS = ("cls_token", "sep_token"), ("bos_token", "eos_token")
_AROUND = {  # class -> the names of the tokens before and after a text
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer"), _CLS_SEP),
    **dict.fromkeys(("RobertaTokenizer", "LongformerTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer"), _CLS_SEP),
    **dict.fromkeys(("XLMRobertaTokenizer", "CamembertTokenizer"), _BOS_EOS),
}
_SPACES = ("Qwen2Tokenizer", "XLMRobertaTokenizer", "CamembertTokenizer")  # transformers 5 alone reads add_prefix_space
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LIKE_BERT = {
    "BertTokenizer",
    "ConvBertTokenizer",
    "DPRContextEncoderTokenizer",
    "DPRQuestionEncoderTokenizer",
    "DPRReaderTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "FunnelTokenizer",
    "LayoutLMTokenizer",
    "LayoutLMv2Tokenizer",
    "LxmertTokenizer",
    "MPNetTokenizer",
    "MobileBertTokenizer",
    "RealmTokenizer",
    "RetriBertTokenizer",
    "SplinterTokenizer",
    "SqueezeBertTokenizer",
}
_WITHOUT_CHINESE = {"MPNetTokenizer", "SplinterTokenizer"}  # they pass over tokenize_chinese_chars
_READ_BY_LIBRARY = {"", "TokenizersBackend", "PreTrainedTokenizer"}  # in transformers 5, as in 4


def load(folder: Path, *, do_lower_case: bool = False) -> tokenizers.Tokenizer:
    """A tokenizer that neither pads nor truncates. Raises TokenizerError."""
    tokenizer = _read_tokenizer(folder / "tokenizer.json")
    try:
        _adjust(tokenizer, folder, do_lower_case=do_lower_case)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TokenizerError(f"{folder}: tokenizer_config.json has a value of the wrong kind ({error})") from None
    return tokenizer


def load_as_it_stands(folder: Path) -> tokenizers.Tokenizer:
    """Load it as sentence-transformers' StaticEmbedding does: no file but tokenizer.json, no special tokens put around.

    Neither pads nor truncates. Raises TokenizerError.
    """
    tokenizer = _read_tokenizer(folder / "tokenizer.json")
    tokenizer.post_processor = processors.Sequence([])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    if found := placeholder(path):
        raise TokenizerError(found)
    if not path.is_file():
        raise TokenizerError(f"{path.parent} has no tokenizer.json; save the model with a fast tokenizer")
    try:
        return tokenizers.Tokenizer.from_buffer(read_whole(path).removeprefix(codecs.BOM_UTF8))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises a plain Exception, and panics as a BaseException
        reason = " ".join(str(error).split())[:200]
        raise TokenizerError(f"{path} can't be read by tokenizers {tokenizers.__version__}: {reason}") from None


def _adjust(tokenizer: tokenizers.Tokenizer, folder: Path, *, do_lower_case: bool) -> None:
    config = read_config(folder / "tokenizer_config.json")
    name = tokenizer_class(folder, config)
    _check_agreement(tokenizer, config, folder, name)
    if is_of_transformers_5(config):
        if isinstance(tokenizer.model, models.Unigram) and name not in _READ_BY_LIBRARY:
            tokenizer.model = _with_exact_scores(folder)
    else:
        _take_flags(tokenizer, config, name)
    add_tokens(tokenizer, config, folder)
    if do_lower_case:
        prepend_lowercase(tokenizer)
    around = ends(folder)
    if around is not None:
        _put_around(tokenizer, around, folder)
    tokenizer.encode_special_tokens = bool(config.get("split_special_tokens", False))
    # What a file says about padding and length is an accident of how it was saved.
    tokenizer.no_padding()
    tokenizer.no_truncation()


def _check_agreement(tokenizer: tokenizers.Tokenizer, config: Config, folder: Path, name: str) -> None:
    """`tokenizer` is tokenizer.json as it stands, `name` its class without "Fast". Raises TokenizerError."""
    is_newer = config.get("added_tokens_decoder") is not None  # then transformers reads no other file
    named = config if is_newer else config | read_config(folder / "special_tokens_map.json")
    empty = tokenizer.encode("")  # padded, if tokenizer.json says so
    around = [token for token, is_read in zip(empty.tokens, empty.attention_mask, strict=True) if is_read]
    if name in _AROUND and len(around) > 1:
        for role, token in zip(_AROUND[name], (around[0], around[-1]), strict=True):
            _check_role(folder, named, role, token, f"puts {token!r} around texts")
    if name in _AROUND and isinstance(tokenizer.model, models.WordPiece):
        unknown = tokenizer.model.unk_token
        _check_role(folder, named, "unk_token", unknown, f"has {unknown!r} for what it does not know")
    if name in _SPACES:
        for found in _spaces(tokenizer):
            if bool(config.get("add_prefix_space", found)) is not found:
                raise _disagreement(folder, "add_prefix_space", f"has {str(found).lower()}")


def _check_role(folder: Path, named: Config, role: str, token: str, does: str) -> None:
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


def _put_around(tokenizer: tokenizers.Tokenizer, wanted: Ends, folder: Path) -> None:
    """The post-processor that transformers 4 made for these tokens. Raises TokenizerError where one is unknown."""
    ids = {token: tokenizer.token_to_id(token) for token in (wanted.bos, wanted.eos) if token}
    for token, token_id in ids.items():
        if token_id is None:
            raise TokenizerError(
                f"{folder}: tokenizer.json has no token {token!r} to be put around texts ({wanted.source}); add it, or "
                "set add_bos_token or add_eos_token to false"
            )
    first, second = (_parts(wanted, text, kind) for kind, text in enumerate("AB"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=first, pair=first + second, special_tokens=list(ids.items())
    )


def _parts(wanted: Ends, text: str, kind: int) -> list[str]:
    """One text in a template, with its tokens, all of one type."""
    return [f"{part}:{kind}" for part in (wanted.bos, f"${text}", wanted.eos) if part]


def _take_flags(tokenizer: tokenizers.Tokenizer, config: Config, name: str) -> None:
    """Flags of tokenizer_config.json that outrank tokenizer.json, also by their defaults.

    As in transformers 4.57: __init__ of PreTrainedTokenizerFast (tokenization_utils_fast.py) for every class, and that
    of the classes in _LIKE_BERT (models/bert/tokenization_bert_fast.py and its copies). A step inside a Sequence stays
    as it is. Where add_prefix_space is given, the classes of Llama and T5 read tokenizer.model instead; they saved
    tokenizer.json with the same flag, and it is taken as it stands.
    """
    split, normalizer = tokenizer.pre_tokenizer, tokenizer.normalizer
    if isinstance(split, pre_tokenizers.ByteLevel):
        split.add_prefix_space = bool(config.get("add_prefix_space", False))
        tokenizer.pre_tokenizer = split
    if name in _LIKE_BERT and isinstance(normalizer, normalizers.BertNormalizer):
        normalizer.lowercase = config.get("do_lower_case", True)
        normalizer.strip_accents = config.get("strip_accents")
        if name not in _WITHOUT_CHINESE:
            normalizer.handle_chinese_chars = config.get("tokenize_chinese_chars", True)
        tokenizer.normalizer = normalizer


def _with_exact_scores(folder: Path) -> models.Unigram:
    """The model with its scores as transformers 5 reads them for the classes that it builds anew, with Python's json.

    The library's own reader, which transformers 4 uses, is off by the last bit for some. Where two ways to cut a text
    score the same, that bit decides.
    """
    model = read_config(folder / "tokenizer.json")["model"]
    vocab = [(piece, score) for piece, score in model["vocab"]]
    return models.Unigram(vocab, unk_id=model["unk_id"], byte_fallback=model.get("byte_fallback", False))


def _normalizers(tokenizer: tokenizers.Tokenizer) -> list[normalizers.Normalizer]:
    normalizer = tokenizer.normalizer
    if normalizer is None:
        return []
    if not isinstance(normalizer, normalizers.Sequence):
        return [normalizer]
    return [normalizer[place] for place in range(len(normalizer))]


def prepend_lowercase(tokenizer: tokenizers.Tokenizer) -> None:
    """Lower the case as sentence-transformers does for do_lower_case."""
    steps = _normalizers(tokenizer)
    if not any(isinstance(step, normalizers.Lowercase) for step in steps):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])

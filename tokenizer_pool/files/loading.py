"""Makes a tokenizer out of a model folder's files as transformers 5 makes it, but by the tokenizers library alone.

transformers does not take tokenizer.json as it stands. For some classes it builds the normalizer and the
pre-tokenizer anew out of tokenizer_config.json, it adds tokens that only the configuration names, and
sentence-transformers may put a Lowercase in front. Vectors are equal to theirs only if ids are, so the same is
done here for the families that embedding models use. Any other class is taken as its tokenizer.json says, but for the
special tokens around texts: there transformers 5 forgets what models were trained with, see `special_tokens`.
"""

from collections.abc import Callable
from pathlib import Path

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from tokenizer_pool.files.added_tokens import add_tokens, content_of
from tokenizer_pool.files.config_files import Config, TokenizerError, read_config
from tokenizer_pool.files.special_tokens import Ends, ends


def load(folder: Path, *, do_lower_case: bool = False) -> tokenizers.Tokenizer:
    """A tokenizer that neither pads nor truncates. Raises TokenizerError."""
    tokenizer = _read_tokenizer(folder / "tokenizer.json")
    try:
        _adjust(tokenizer, folder, do_lower_case=do_lower_case)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TokenizerError(f"{folder}: tokenizer_config.json has a value of the wrong kind ({error})") from None
    return tokenizer


def load_as_it_stands(folder: Path) -> tokenizers.Tokenizer:
    """As sentence-transformers' StaticEmbedding takes it: no file but tokenizer.json, no special tokens put around.

    Neither pads nor truncates. Raises TokenizerError.
    """
    tokenizer = _read_tokenizer(folder / "tokenizer.json")
    tokenizer.post_processor = processors.Sequence([])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _adjust(tokenizer: tokenizers.Tokenizer, folder: Path, *, do_lower_case: bool) -> None:
    config = read_config(folder / "tokenizer_config.json")
    family = _FAMILIES.get(_tokenizer_class(folder, config))
    if family is not None:
        family(tokenizer, config, folder)
    add_tokens(tokenizer, config, folder)
    if do_lower_case:
        _prepend_lowercase(tokenizer)
    around = ends(folder)
    if around is not None:
        _put_around(tokenizer, around, folder)
    tokenizer.encode_special_tokens = bool(config.get("split_special_tokens", False))
    # What a file says about padding and length is an accident of how it was saved.
    tokenizer.no_padding()
    tokenizer.no_truncation()


def has_token_types(folder: Path) -> bool:
    """Whether the types of tokens go to the model: what tokenizer_config.json says, else transformers' class.

    Raises TokenizerError.
    """
    config = read_config(folder / "tokenizer_config.json")
    names = config.get("model_input_names")
    return "token_type_ids" in names if isinstance(names, list) else _tokenizer_class(folder, config) in _WITH_TYPES


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


def _read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise TokenizerError(f"{path.parent} has no tokenizer.json; save the model with a fast tokenizer")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises a plain Exception, and panics as a BaseException
        reason = " ".join(str(error).split())[:200]
        raise TokenizerError(f"{path} can't be read by tokenizers {tokenizers.__version__}: {reason}") from None


def _tokenizer_class(folder: Path, config: Config) -> str:
    """The class that transformers would take, without "Fast"; "" where no file names one."""
    model = read_config(folder / "config.json")
    name = config.get("tokenizer_class") or model.get("tokenizer_class")
    return str(name or _CLASS_OF_MODEL_TYPE.get(model.get("model_type", ""), "")).removesuffix("Fast")


def _as_bert(tokenizer: tokenizers.Tokenizer, config: Config, _: Path) -> None:
    if not isinstance(tokenizer.model, models.WordPiece | models.WordLevel):
        return  # transformers 5 would read its pieces as WordPiece's, and they were not trained so
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()


def _as_roberta(tokenizer: tokenizers.Tokenizer, config: Config, _: Path) -> None:
    if not isinstance(tokenizer.model, models.BPE):
        return  # CamemBERT v2 has WordPiece under this class, whose words transformers 5 splits into bytes
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space", False)))


def _as_gpt2(tokenizer: tokenizers.Tokenizer, config: Config, _: Path) -> None:
    step = tokenizer.pre_tokenizer
    if isinstance(step, pre_tokenizers.ByteLevel):  # others, which split at digits too, stay
        step.add_prefix_space = bool(config.get("add_prefix_space", False))
        tokenizer.pre_tokenizer = step


def _as_xlm_roberta(tokenizer: tokenizers.Tokenizer, config: Config, folder: Path) -> None:
    if not isinstance(tokenizer.model, models.Unigram):
        return
    tokenizer.model = models.Unigram(_scores(folder), unk_id=3, byte_fallback=False)
    _split_at_spaces(tokenizer, config)


def _as_camembert(tokenizer: tokenizers.Tokenizer, config: Config, folder: Path) -> None:
    if not isinstance(tokenizer.model, models.Unigram):
        return
    vocab = _scores(folder)
    unknown = content_of(config.get("unk_token", "<unk>"))
    unk_id = next((place for place, (piece, _) in enumerate(vocab) if piece == unknown), 0)
    tokenizer.model = models.Unigram(vocab, unk_id=unk_id, byte_fallback=False)
    _split_at_spaces(tokenizer, config)


def _as_deberta_v2(tokenizer: tokenizers.Tokenizer, config: Config, folder: Path) -> None:
    if not isinstance(tokenizer.model, models.Unigram):
        return
    vocab = _scores(folder)
    unknown = (content_of(config.get("unk_token", "[UNK]")), 0.0)
    unk_id = vocab.index(unknown) if unknown in vocab else config.get("unk_id", 1)
    tokenizer.model = models.Unigram(vocab, unk_id=unk_id, byte_fallback=False)
    tokenizer.normalizer = normalizers.Sequence(
        [
            *([normalizers.Lowercase()] if config.get("do_lower_case", False) else []),
            normalizers.Replace(tokenizers.Regex(r"\s{2,}|[\n\r\t]"), " "),
            normalizers.NFC(),
            normalizers.Strip(left=False, right=True),
        ]
    )
    scheme = "always" if config.get("add_prefix_space", True) else "first"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *([pre_tokenizers.Punctuation(behavior="isolated")] if config.get("split_by_punct", False) else []),
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme),
        ]
    )


def _scores(folder: Path) -> list[tuple[str, float]]:
    """Pieces and their scores as transformers reads them, with Python's json.

    The library's own reader is off by the last bit for some, and where two ways to cut a text score the same, that bit
    decides.
    """
    return [(piece, score) for piece, score in read_config(folder / "tokenizer.json")["model"]["vocab"]]


def _split_at_spaces(tokenizer: tokenizers.Tokenizer, config: Config) -> None:
    charsmaps = [step for step in _normalizers(tokenizer) if isinstance(step, normalizers.Precompiled)]
    tokenizer.normalizer = charsmaps[0] if charsmaps else None
    scheme = "always" if config.get("add_prefix_space", True) else "never"
    metaspace = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])


_FAMILIES: dict[str, Callable[[tokenizers.Tokenizer, Config, Path], None]] = {
    "BartTokenizer": _as_gpt2,
    "BertTokenizer": _as_bert,
    "CamembertTokenizer": _as_camembert,
    "CodeGenTokenizer": _as_gpt2,
    "ConvBertTokenizer": _as_bert,
    "DebertaTokenizer": _as_gpt2,
    "DebertaV2Tokenizer": _as_deberta_v2,
    "DistilBertTokenizer": _as_bert,
    "ElectraTokenizer": _as_bert,
    "GPT2Tokenizer": _as_gpt2,
    "LayoutLMTokenizer": _as_bert,
    "LEDTokenizer": _as_gpt2,
    "LxmertTokenizer": _as_bert,
    "MobileBertTokenizer": _as_bert,
    "MPNetTokenizer": _as_bert,
    "SplinterTokenizer": _as_bert,
    "SqueezeBertTokenizer": _as_bert,
    "LongformerTokenizer": _as_roberta,
    "RobertaTokenizer": _as_roberta,
    "XLMRobertaTokenizer": _as_xlm_roberta,
}

_WITH_TYPES = {  # "token_type_ids" is in their model_input_names
    "BertTokenizer",
    "ConvBertTokenizer",
    "DebertaTokenizer",
    "DebertaV2Tokenizer",
    "ElectraTokenizer",
    "FNetTokenizer",
    "LayoutLMTokenizer",
    "MobileBertTokenizer",
    "SqueezeBertTokenizer",
}

_CLASS_OF_MODEL_TYPE = {
    "bert": "BertTokenizer",
    "camembert": "CamembertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}


def _normalizers(tokenizer: tokenizers.Tokenizer) -> list[normalizers.Normalizer]:
    normalizer = tokenizer.normalizer
    if normalizer is None:
        return []
    if not isinstance(normalizer, normalizers.Sequence):
        return [normalizer]
    return [normalizer[place] for place in range(len(normalizer))]


def _prepend_lowercase(tokenizer: tokenizers.Tokenizer) -> None:
    steps = _normalizers(tokenizer)
    if not any(isinstance(step, normalizers.Lowercase) for step in steps):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])

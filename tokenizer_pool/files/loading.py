"""Makes a tokenizer out of a model folder's files, by the tokenizers library alone.

tokenizer.json is taken as it stands, as transformers 4 and text-embeddings-inference take it: models were trained with
its ids. What tokenizer_config.json says goes over it where transformers 4.57 lets it, see `_take_flags`. It also may
name more tokens, and special tokens around texts, see `special_tokens`; sentence-transformers may put a Lowercase in
front. transformers 5 builds normalizer and pre-tokenizer of many classes anew, whatever tokenizer.json says of them.
What it has built so it saves, and then tokenizer.json is right again.
"""

import codecs
from pathlib import Path

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from tokenizer_pool.files import agreement
from tokenizer_pool.files.added_tokens import add_tokens
from tokenizer_pool.files.config_files import Config, TokenizerError, is_of_transformers_5, read_config
from tokenizer_pool.files.special_tokens import Ends, ends
from wire.placeholder import placeholder


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
    name = tokenizer_class(folder, config)
    agreement.check(tokenizer, config, folder, name)
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
    if found := placeholder(path):
        raise TokenizerError(found)
    if not path.is_file():
        raise TokenizerError(f"{path.parent} has no tokenizer.json; save the model with a fast tokenizer")
    try:
        return tokenizers.Tokenizer.from_buffer(path.read_bytes().removeprefix(codecs.BOM_UTF8))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises a plain Exception, and panics as a BaseException
        reason = " ".join(str(error).split())[:200]
        raise TokenizerError(f"{path} can't be read by tokenizers {tokenizers.__version__}: {reason}") from None


def tokenizer_class(folder: Path, config: Config) -> str:
    """The class that transformers would take, without "Fast"; "" where no file names one."""
    model = read_config(folder / "config.json")
    name = config.get("tokenizer_class") or model.get("tokenizer_class")
    return str(name or _CLASS_OF_MODEL_TYPE.get(model.get("model_type", ""), "")).removesuffix("Fast")


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


def prepend_lowercase(tokenizer: tokenizers.Tokenizer) -> None:
    """As sentence-transformers does for do_lower_case."""
    steps = _normalizers(tokenizer)
    if not any(isinstance(step, normalizers.Lowercase) for step in steps):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])

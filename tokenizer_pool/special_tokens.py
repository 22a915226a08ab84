"""The special tokens around texts, where they are not those that tokenizer.json says.

Up to transformers 4.57 the classes in _BY_CLASS made the post-processor anew from `add_bos_token` and `add_eos_token`
of tokenizer_config.json, whatever tokenizer.json said (update_post_processor in
src/transformers/models/{llama,code_llama,cohere,gemma,gpt_neox}/tokenization_*_fast.py). Models were trained with these
ids, and many pool the last token. transformers 5 passes over the flags. Folders that it has saved need none: their
tokenizer.json is right. All other classes of transformers 4 took tokenizer.json as it stands, flags or not.

The code of some repositories does the same in a class of its own (_BY_CODE). It is known here and never run.
"""

from dataclasses import dataclass
from pathlib import Path

from wire.tokenizer_files import Config, TokenizerError, is_of_transformers_5, read_config


@dataclass(frozen=True, slots=True)
class Ends:
    """The tokens that go around each text, and around each text of a pair."""

    bos: str | None  # before it
    eos: str | None  # behind it
    source: str  # the file and the reason

    def __str__(self) -> str:
        named = [f"{token} {place}" for token, place in ((self.bos, "before"), (self.eos, "after")) if token]
        return f"{' and '.join(named) or 'none before or after'} each text"


@dataclass(frozen=True, slots=True)
class _Class:
    """The habits of a class where the files don't say."""

    bos: str | None  # its usual token; None = it never adds one
    eos: str
    adds_bos: bool = True


_LLAMA = _Class("<s>", "</s>")
_BY_CLASS = {
    "LlamaTokenizer": _LLAMA,
    "CodeLlamaTokenizer": _LLAMA,
    "GemmaTokenizer": _Class("<bos>", "<eos>"),
    "CohereTokenizer": _Class("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    "GPTNeoXTokenizer": _Class("<|endoftext|>", "<|endoftext|>", adds_bos=False),
}
# gte-Qwen2-*-instruct, gte-Qwen1.5-7B-instruct, stella_en_1.5B_v5, inf-retriever-v1: no token before a text, whatever
# add_bos_token says. Held by vLLM's tests/tokenizers_/test_basic.py (test_gte_legacy_eos); text-embeddings-inference
# adds <|endoftext|> to them in router/src/lib.rs.
_QWEN = _Class(None, "<|endoftext|>")
_BY_CODE = {"tokenization_qwen.Qwen2Tokenizer": _QWEN, "tokenization_qwen.Qwen2TokenizerFast": _QWEN}
# of those repositories (NovaSearch was dunzhang); fine-tuned copies name one of them before the code
_OWNERS_OF_CODE = ("Alibaba-NLP", "NovaSearch", "dunzhang", "infly")
# TOKENIZER_MAPPING_NAMES in transformers 4.57's models/auto/tokenization_auto.py
_CLASS_OF_MODEL_TYPE = {
    "cohere": "CohereTokenizer",
    "cohere2": "CohereTokenizer",
    "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer",
    "gemma3_text": "GemmaTokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "llama": "LlamaTokenizer",
    "mistral": "LlamaTokenizer",
    "mixtral": "LlamaTokenizer",
    "olmo": "GPTNeoXTokenizer",
    "olmo2": "GPTNeoXTokenizer",
    "phi3": "LlamaTokenizer",
    "stablelm": "GPTNeoXTokenizer",
}
_NV_EMBED = "nvembed"  # whose code puts the eos token behind each text: input_transform_func in modeling_nvembed.py
_FLAGS = ("add_bos_token", "add_eos_token")


def ends(folder: Path) -> Ends | None:
    """Ends by tokenizer_config.json and config.json; None = those that tokenizer.json says. Raises TokenizerError."""
    config = read_config(folder / "tokenizer_config.json")
    for name in _FLAGS:
        if not isinstance(config.get(name), bool | None):
            raise TokenizerError(f"{folder}: {name} in tokenizer_config.json is neither true nor false")
    model = read_config(folder / "config.json")
    code = _code(folder, config, model)
    if code is not None:
        return _of(_BY_CODE[code], folder, config, f"the code {code}, which is known here and not run")
    if model.get("model_type") == _NV_EMBED:
        return _of(_LLAMA, folder, config | {"add_eos_token": True}, "LlamaTokenizer and the code of NV-Embed")
    if is_of_transformers_5(config):
        return None
    name = str(config.get("tokenizer_class") or model.get("tokenizer_class") or "").removesuffix("Fast")
    # Where nothing says the version, a file that names a class is of transformers 4.
    version = str(model.get("transformers_version") or ("4" if name else "5"))
    if not any(flag in config for flag in _FLAGS) and version >= "5":
        return None
    name = name or _CLASS_OF_MODEL_TYPE.get(str(model.get("model_type")), "")
    return _of(_BY_CLASS[name], folder, config, name) if name in _BY_CLASS else None


def in_words(folder: Path) -> str:
    """The tokens in words, and the file and reason that say so. Raises TokenizerError."""
    wanted = ends(folder)
    return f"{wanted} ({wanted.source})" if wanted else "as tokenizer.json says"


def _of(known: _Class, folder: Path, config: Config, name: str) -> Ends:
    """Raises TokenizerError where a flag asks for a token that the configuration says there is none of."""
    names_in_config = config.get("added_tokens_decoder") is not None
    named = config if names_in_config else config | read_config(folder / "special_tokens_map.json")
    flags = {flag: bool(config[flag]) for flag in _FLAGS if flag in config}  # null is passed on, and is false
    adds_bos = known.bos is not None and flags.get("add_bos_token", known.adds_bos)
    said = " and ".join(f"{flag} {str(value).lower()}" for flag, value in flags.items()) or "no flag"
    return Ends(
        bos=_token(named, "bos_token", known.bos, folder) if adds_bos else None,
        eos=_token(named, "eos_token", known.eos, folder) if flags.get("add_eos_token", False) else None,
        source=f"tokenizer_config.json: {said}, with {name}",
    )


def _token(named: Config, name: str, usual: str | None, folder: Path) -> str:
    """Raises TokenizerError."""
    token = named.get(name, usual)
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str) or not text:
        raise TokenizerError(f"{folder}: add_{name} of tokenizer_config.json needs a {name}, and there is none")
    return text


def _code(folder: Path, config: Config, model: Config) -> str | None:
    """The class in a repository's own code that transformers would run if it were allowed to; the fast one, if any.

    Where tokenizer_config.json has no class, what config.json names comes first, as in transformers 4 and 5. Raises
    TokenizerError for code that is not known here.
    """
    file, code = "tokenizer_config.json", _named_in(config.get("auto_map"))
    auto_map = model.get("auto_map")
    if not config.get("tokenizer_class") and isinstance(auto_map, dict) and auto_map.get("AutoTokenizer"):
        file, code = "config.json", _named_in(auto_map)
    if code is None:
        return None
    repository, _, local = code.rpartition("--")
    if local not in _BY_CODE or (repository and repository.partition("/")[0] not in _OWNERS_OF_CODE):
        raise TokenizerError(
            f"{folder}: auto_map in {file} names code, {code}, which is not run here and may give other token ids; if "
            f"tokenizer.json alone is right, remove AutoTokenizer from auto_map in {file}"
        )
    return local


def _named_in(auto_map: object) -> str | None:
    named = auto_map.get("AutoTokenizer") if isinstance(auto_map, dict) else auto_map
    classes = [str(one) for one in (named if isinstance(named, list) else [named]) if one]
    return classes[-1] if classes else None

"""The JSON files beside tokenizer.json, and what they say of the tokenizer: its class, its chat template, and whether
it makes types.

Reads them without the tokenizers library.
"""

import json
from pathlib import Path
from typing import Any

from wire.files import TooLargeError, read_whole
from wire.placeholder import placeholder

Config = dict[str, Any]
CHAT_TEMPLATE = "chat_template.jinja"

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
# model_input_names of transformers 5's classes have "token_type_ids" for these alone
_WITH_TYPES = {
    "BertTokenizer",
    "DPRQuestionEncoderTokenizer",
    "DebertaTokenizer",
    "DebertaV2Tokenizer",
    "FNetTokenizer",
    "LayoutLMv2Tokenizer",
    "LxmertTokenizer",
    "MobileBertTokenizer",
}
# and of transformers 4.57's fast classes for all but these, PreTrainedTokenizerFast included
_WITHOUT_TYPES = {
    "BartTokenizer",
    "BarthezTokenizer",
    "BigBirdTokenizer",
    "BlenderbotTokenizer",
    "BloomTokenizer",
    "CLIPTokenizer",
    "CamembertTokenizer",
    "CodeGenTokenizer",
    "CodeLlamaTokenizer",
    "CohereTokenizer",
    "DistilBertTokenizer",
    "GPT2Tokenizer",
    "GPTNeoXTokenizer",
    "GemmaTokenizer",
    "LEDTokenizer",
    "LayoutLMv3Tokenizer",
    "LayoutXLMTokenizer",
    "LlamaTokenizer",
    "LongformerTokenizer",
    "MBartTokenizer",
    "MBart50Tokenizer",
    "MPNetTokenizer",
    "MT5Tokenizer",
    "MvpTokenizer",
    "NllbTokenizer",
    "OpenAIGPTTokenizer",
    "PegasusTokenizer",
    "Qwen2Tokenizer",
    "ReformerTokenizer",
    "RetriBertTokenizer",
    "RobertaTokenizer",
    "SeamlessM4TTokenizer",
    "T5Tokenizer",
    "UdopTokenizer",
    "WhisperTokenizer",
    "XGLMTokenizer",
    "XLMRobertaTokenizer",
}


class TokenizerError(Exception):
    """A model folder holds no tokenizer that can be used; the message is one line for the operator."""


def read_config(path: Path) -> Config:
    """The JSON object in a file, {} where there is no such file. Raises TokenizerError."""
    if found := placeholder(path):
        raise TokenizerError(found)
    if not path.is_file():
        return {}
    try:
        config = json.loads(read_whole(path))
    except OSError as error:
        raise TokenizerError(f"{path} can't be read: {error.strerror}") from None
    except TooLargeError as error:
        raise TokenizerError(f"{path} is too large: {error}") from None
    except ValueError as error:
        raise TokenizerError(f"{path} is not JSON: {error}") from None
    except RecursionError:
        raise TokenizerError(f"{path} is nested too deeply") from None
    if not isinstance(config, dict):
        raise TokenizerError(f"{path} is not a JSON object")
    return config


def chat_template(tokenizer_config: Config) -> str | None:
    """The chat template in tokenizer_config.json, of several the default one; None where there is none. A file
    CHAT_TEMPLATE beside it outranks it."""
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):  # several with names
        of_default = (one for one in template if isinstance(one, dict) and one.get("name") == "default")
        template = next(of_default, {}).get("template")
    return template if isinstance(template, str) else None


def has_chat_template(folder: Path) -> bool:
    """Whether there is one in a folder whose files can be read."""
    try:
        return (folder / CHAT_TEMPLATE).is_file() or chat_template(
            read_config(folder / "tokenizer_config.json")
        ) is not None
    except TokenizerError:
        return False


def is_of_transformers_5(tokenizer_config: Config) -> bool:
    """Whether transformers 5 saved the tokenizer: no earlier version writes this key."""
    return tokenizer_config.get("backend") == "tokenizers"


def tokenizer_class(folder: Path, config: Config) -> str:
    """The class that transformers would take, without "Fast"; "" where no file names one."""
    model = read_config(folder / "config.json")
    name = config.get("tokenizer_class") or model.get("tokenizer_class")
    return str(name or _CLASS_OF_MODEL_TYPE.get(model.get("model_type", ""), "")).removesuffix("Fast")


def has_token_types(folder: Path) -> bool:
    """Whether the types of tokens go to the model: what tokenizer_config.json says, else the class of the version of
    transformers that saved it. Never where config.json has one type alone.

    Raises TokenizerError.
    """
    config = read_config(folder / "tokenizer_config.json")
    names = config.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    if read_config(folder / "config.json").get("type_vocab_size") == 1:
        return False
    name = tokenizer_class(folder, config)
    return name in _WITH_TYPES if is_of_transformers_5(config) else name not in _WITHOUT_TYPES

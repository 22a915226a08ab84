"""Whether a tokenizer makes types of tokens: 0 for the first text of a pair, 1 for the second."""

from pathlib import Path

from tokenizer_pool.files.config_files import is_of_transformers_5, read_config
from tokenizer_pool.files.loading import tokenizer_class


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

"""The options of sentence-transformers' Transformer module, which go to the library's classes over config.json.

Follows sentence-transformers 6. What would change rows or token ids, and is not read here, is refused by its name.
"""

from collections.abc import Iterator

from engine.model.detection.chains import Chain
from engine.model.json_files import Json, check_known, flag_in, number_in, object_in, unread
from engine.types import ModelError

# Each is written under a new or an old name.
_OF_PROCESSOR = ("processor_kwargs", "tokenizer_args")
_OF_CONFIG = ("config_kwargs", "config_args")
_OF_MODEL = ("model_kwargs", "model_args")
# sentence-transformers puts its own in their place.
_OF_LOADING = frozenset(("cache_dir", "local_files_only", "revision", "subfolder", "token", "trust_remote_code"))
_HARMLESS_TO_IDS = _OF_LOADING | {
    *("clean_up_tokenization_spaces", "max_length", "model_max_length", "padding", "padding_side", "use_fast"),
}
_HARMLESS_TO_ROWS = _OF_LOADING | {
    *("_attn_implementation", "add_pooling_layer", "attn_implementation", "code_revision", "device_map", "dtype"),
    *("export", "file_name", "low_cpu_mem_usage", "provider", "torch_dtype", "unpad_inputs", "use_cache"),
    *("use_memory_efficient_attention", "use_safetensors"),
}
_HARMLESS_IN_CALLS = frozenset(("logits_to_keep", "pad_to_multiple_of", "padding", "padding_side", "return_tensors"))
_KNOWN = frozenset(
    (
        *(*_OF_PROCESSOR, *_OF_CONFIG, *_OF_MODEL, "max_seq_length", "do_lower_case", "tokenizer_name_or_path"),
        *("transformer_task", "modality_config", "module_output_name", "processing_kwargs"),
        *("backend", "cache_dir", "unpad_inputs"),  # without effect
        *("query_length", "document_length", "query_expansion"),
    )
)
_OF_ROLES = ("query_length", "document_length", "query_expansion")  # read for late interaction


def length_in(options: Json, file: str) -> int | None:
    """The longest sequence, in tokens; None if the options, which this file has, do not say."""
    of_tokenizer = number_in(_given(options, _OF_PROCESSOR), "model_max_length", file=file)
    return of_tokenizer or number_in(options, "max_seq_length", file=file)


def lowers_case(options: Json, file: str) -> bool:
    """Whether text is lower-cased before the tokenizer. Raises ModelError."""
    return flag_in(options, "do_lower_case", file, default=False)


def check_options(options: Json, file: str, *, config: Json, chain: Chain) -> None:
    """Raises ModelError for an option that may change rows, and is not read here. config: config.json as it is."""
    check_known(options, _KNOWN, file)
    if others := sorted(_given(options, _OF_PROCESSOR).keys() - _HARMLESS_TO_IDS):
        raise ModelError(
            f"{', '.join(others)} among the tokenizer's options in {file} may change token ids, and is not read there; "
            "write it into tokenizer_config.json"
        )
    for name, value in _given(options, _OF_CONFIG).items():
        if name not in _HARMLESS_TO_ROWS and (name not in config or config[name] != value):
            raise ModelError(
                f"{name!r} among the configuration's options in {file} may change rows, and is not read there; write "
                "it into config.json"
            )
    for name in _unread(options, chain):
        raise unread(name, file)


def _unread(options: Json, chain: Chain) -> Iterator[str]:
    yield from sorted(_given(options, _OF_MODEL).keys() - _HARMLESS_TO_ROWS)
    calls = object_in(options, "processing_kwargs")
    for kind in ("common", "text"):
        yield from sorted(object_in(calls, kind).keys() - _HARMLESS_IN_CALLS)
    if chain is Chain.ANSWER:  # the templates known here end with the turn of the one who answers
        asked = object_in(calls, "chat_template").items()
        yield from (name for name, value in asked if name != "add_generation_prompt" or value is not True)
    roles = () if chain is Chain.LATE else _OF_ROLES
    yield from (name for name in (*roles, "tokenizer_name_or_path") if options.get(name) is not None)


def _given(options: Json, names: tuple[str, str]) -> Json:
    new, old = (object_in(options, name) for name in names)
    return {**new, **old}

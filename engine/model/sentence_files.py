"""Reads sentence-transformers' own files in a model folder: length, prompts, modules and the Transformer's options.

Follows sentence-transformers 6. engine.model.modules finds out which chain of modules it is, and reads each module's
options. What would change rows or token ids, and is not read here, is refused by its name. Knows nothing of
architectures and weights.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from engine.model.json_files import (
    Json,
    check_known,
    flag_in,
    needed_number,
    number_in,
    object_in,
    read_optional,
    unread_key_error,
)
from engine.model.known_code.known_code import LINEAR, POOLS_LAST, POOLS_TEXT_ALONE, ROUNDS
from engine.model.modules import (
    ROUNDING,
    Chain,
    Module,
    known_pooling,
    model_kind,
    read_chain,
    read_pooling,
    read_scoring_steps,
    read_steps,
    transformer_refusal,
)
from engine.model.tasks import Dense, Normalize, Step
from engine.types import ModelError
from wire.pairs import ChatPairs
from wire.tokenizer_files import CHAT_TEMPLATE, has_chat_template

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
_TRANSFORMER_OPTIONS = frozenset(
    (
        *(*_OF_PROCESSOR, *_OF_CONFIG, *_OF_MODEL, "max_seq_length", "do_lower_case", "tokenizer_name_or_path"),
        *("transformer_task", "modality_config", "module_output_name", "processing_kwargs"),
        *("backend", "cache_dir", "unpad_inputs"),  # without effect
        *("query_length", "document_length", "query_expansion"),
    )
)
# What the library's call for chat templates takes, and a template does not get.
_OF_RENDERING = frozenset(
    (
        *("chat_template", "continue_final_message", "documents", "max_length", "padding", "return_dict"),
        *("return_assistant_tokens_mask", "return_tensors", "tokenize", "tokenizer_kwargs", "tools", "truncation"),
    )
)
_RESTORES = "restore_suffix"  # the end of the template is put back where it was cut off
_OF_ROLES = ("query_length", "document_length", "query_expansion")  # read for late interaction
# sentence_transformers/base/modality.py
_FLAT = ("apertus", "deepseek_v3", "gpt_oss", "seed_oss")
_OTHER_TEMPLATES = "additional_chat_templates"
_STRUCTURED = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")
CONFIG = "config_sentence_transformers.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_CONFIG_KEYS = frozenset(  # keys of CONFIG, of all the library's classes and of PyLate
    (
        *("__version__", "model_type", "requirements", "prompts", "default_prompt_name", "similarity_fn_name"),
        *("truncate_dim", "max_active_dims", "activation_fn", "keep_in_fp32_modules"),
        *("query_prefix", "document_prefix", "query_length", "document_length", "query_expansion", "skiplist_words"),
        *("do_query_expansion", "attend_to_expansion_tokens", "attend_to_mask_tokens"),
    )
)
_MAX_NAMED = 12  # keys in a note
_FLAG = "--pooling"
_LINEAR_POOLINGS = (("cls",), ("mean",), ("last",))
_MODEL2VEC = "model2vec"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceFiles:
    """The steps that a text takes before the transformer, and its token rows after it."""

    poolings: tuple[str, ...]  # of engine.model.tasks.POOLINGS; joined in this order
    pooling_source: str  # the file or flag that says so
    chain: Chain | None = None  # None = there is no modules.json
    modules: tuple[Module, ...] = ()  # of modules.json
    transformer: Json  # the Transformer module's options, often {}
    steps: tuple[Step, ...] = ()  # after the pooling
    normalize: bool = False  # whether the row is scaled to length 1 in the end
    rounds: bool = False  # whether whole numbers are made of the row in the end: see engine.model.modules.ROUNDING
    include_prompt: bool = True
    do_lower_case: bool = False
    max_seqlen: int | None = None  # tokens; None = not said
    max_seqlen_source: str = ""  # the file that says so
    query_table: str = ""  # folder of the query table's weights; "" = there is no table
    note: str = ""  # about an assumption, if any

    @property
    def is_pooling_asked(self) -> bool:
        """Whether --pooling is given, so the model is for embeddings."""
        return self.pooling_source == _FLAG

    @property
    def tokenizer_folder(self) -> str:
        """The place of tokenizer.json within the folder; "" = in itself."""
        return str(self.modules[0].path) if self.modules and self.modules[0].path.parts else ""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Texts that may be put before a text."""

    by_name: dict[str, str]
    default_name: str | None  # a key of by_name
    source: str = CONFIG  # the file that has them

    @property
    def default(self) -> str:
        """The default one, mostly empty."""
        return self.by_name.get(self.default_name or "", "")


def read_modules(folder: Path, config: Json, *, pooling: str | None) -> SentenceFiles:
    """Read modules.json and the files it names. config: config.json. pooling: cls, mean or last-token overrides files.
    Raises ModelError if a module is not supported."""
    found = _read_modules(folder, config, pooling=pooling)
    return replace(found, steps=(_among_weights(config, found), *found.steps)) if LINEAR in config else found


def _among_weights(config: Json, found: SentenceFiles) -> Step:
    """A layer that the model's own code has behind the transformer, for every token. It has no bias, so it comes to the
    same behind the pooling. Raises ModelError for a pooling with which it does not."""
    if found.poolings not in _LINEAR_POOLINGS:
        raise ModelError(
            f"{found.pooling_source} asks for {'+'.join(found.poolings)} pooling, and the layer `linear` of this model "
            "is computed behind one of cls, mean and last-token"
        )
    return Dense(
        folder=str(PurePosixPath(found.tokenizer_folder, "model.safetensors")),
        in_features=needed_number(config, "hidden_size"),
        out_features=config[LINEAR],
        has_bias=False,
        activation="Identity",
    )


def _read_modules(folder: Path, config: Json, *, pooling: str | None) -> SentenceFiles:
    chosen = known_pooling(pooling, _FLAG) if pooling else None
    found = read_chain(folder)
    chain, modules = found.chain, found.modules
    if chain is None:
        return _without_modules(folder, config, chosen)
    transformer_file, transformer = _transformer_config(folder / found.transformer_folder)
    if refusal := transformer_refusal(chain, transformer, is_masked_lm=modules[0].kind == "MLMTransformer"):
        raise ModelError(f"{transformer_file or modules[0].kind}: {refusal}")
    said = read_optional(folder / found.transformer_folder / "config.json")
    check_options(transformer, transformer_file, config=said, chain=chain)
    poolings, source, include_prompt = _pooling(folder, config, chain, modules)
    steps = _steps(folder, chain, modules)
    normalize = bool(steps) and isinstance(steps[-1], Normalize)
    return SentenceFiles(
        poolings=(chosen,) if chosen else poolings,
        pooling_source=_FLAG if chosen else source,
        chain=chain,
        modules=modules,
        transformer=transformer,
        steps=steps[:-1] if normalize else steps,
        normalize=normalize,
        rounds=modules[-1].kind == ROUNDING,
        include_prompt=include_prompt,
        do_lower_case=flag_in(transformer, "do_lower_case", transformer_file, default=False),
        max_seqlen=_length_in(transformer, transformer_file),
        max_seqlen_source=transformer_file,
        query_table=str(found.query_table) if found.query_table else "",
    )


def chat_pairs(options: Json, folder: Path, model_type: str) -> ChatPairs | None:
    """How a Transformer with these options puts pairs into its chat template; None if it does not. folder: the
    tokenizer's. Raises ModelError."""
    modalities = object_in(options, "modality_config")
    if "message" not in modalities:
        return None
    form = object_in(modalities, "message").get("format", "auto")
    if form not in ("flat", "structured", "auto"):
        raise ModelError("'format' of 'message' in 'modality_config' is neither flat nor structured")
    given = object_in(object_in(options, "processing_kwargs"), "chat_template")
    asked = {name: value for name, value in given.items() if name != _RESTORES}
    is_flat = form == "flat" or (form == "auto" and _takes_texts(folder, model_type))
    return ChatPairs(is_flat, json.dumps(asked))


def own_chat_pairs(folder: Path, model_type: str) -> ChatPairs:
    """How sentence-transformers puts pairs into the chat template of a folder that declares nothing."""
    return ChatPairs(_takes_texts(folder, model_type), "{}")


def _takes_texts(folder: Path, model_type: str) -> bool:
    """Whether what messages say is a text, as the library tells it from the words of the only chat template."""
    file = folder / CHAT_TEMPLATE
    source: object = read_optional(folder / "tokenizer_config.json").get("chat_template")
    if file.is_file():
        source = file.read_text(encoding="utf-8", errors="replace")
    is_only = isinstance(source, str) and not (folder / _OTHER_TEMPLATES).is_dir()
    return model_type in _FLAT or (is_only and bool(source) and not any(sign in str(source) for sign in _STRUCTURED))


def read_prompts(folder: Path) -> Prompts:
    """The prompts by name and the name of the default one, which counts only beside modules.json, as in
    sentence-transformers. Raises ModelError."""
    config = read_optional(folder / CONFIG)
    model_kind(folder)
    # jina-embeddings-v3 has them in both files
    named, source = object_in(config, "prompts", CONFIG), CONFIG
    if not named and (tasks := object_in(read_optional(folder / "config.json"), "task_instructions", "config.json")):
        named, source = tasks, "config.json"
    prompts = {name: prompt for name, prompt in named.items() if prompt is not None}
    for name, prompt in prompts.items():
        if not isinstance(prompt, str):
            key = "prompts" if source == CONFIG else "task_instructions"
            raise ModelError(f"{key} in {source}: {name!r} is not a text")
    default = config.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise ModelError(f"default_prompt_name {default!r} in {CONFIG} is not among the model's prompts")
    return Prompts(prompts, default if (folder / "modules.json").is_file() else None, source)


def read_cuts(folder: Path) -> tuple[int | None, int | None]:
    """See truncate_dim and max_active_dims of ModelFolder. Read as by sentence-transformers' classes: each its own,
    only beside modules.json. Raises ModelError for what is no whole number from 1."""
    config, kind = read_optional(folder / CONFIG), model_kind(folder)
    truncate_dim, max_active_dims = (_count_in(config, key) for key in ("truncate_dim", "max_active_dims"))
    if not (folder / "modules.json").is_file():
        kind = ""
    return truncate_dim if kind == "SentenceTransformer" else None, max_active_dims if kind == "SparseEncoder" else None


def _count_in(config: Json, key: str) -> int | None:
    """Stricter than sentence-transformers, which cuts by the numbers below 1 as slices of Python do."""
    count = config.get(key)
    if count is not None and (type(count) is not int or count < 1):
        raise ModelError(f"{key} in {CONFIG} is not a whole number from 1; correct it, or take it out")
    return count


def read_notes(folder: Path) -> tuple[str, ...]:
    """Notes on what CONFIG says about comparing rows, which clients do, and on keys that are read nowhere."""
    config = read_optional(folder / CONFIG)
    similarity, others = config.get("similarity_fn_name"), sorted(config.keys() - _CONFIG_KEYS)
    named = ", ".join(name[:40] for name in others[:_MAX_NAMED]) + (" …" if len(others) > _MAX_NAMED else "")
    return (
        *([f"its rows are made to be compared by {similarity} (similarity_fn_name)"] if similarity else ()),
        *([f"{CONFIG} has keys that sentence-transformers does not read: {named}"] if others else ()),
    )


def _steps(folder: Path, chain: Chain, modules: tuple[Module, ...]) -> tuple[Step, ...]:
    if chain is Chain.POOLED_SCORES:
        return read_scoring_steps(folder, modules)
    return read_steps(folder, modules) if chain in (Chain.EMBED, Chain.STATIC) else ()


def _pooling(
    folder: Path, config: Json, chain: Chain, modules: tuple[Module, ...]
) -> tuple[tuple[str, ...], str, bool]:
    """The poolings, their source, and whether a prompt's tokens count."""
    if chain in (Chain.EMBED, Chain.POOLED_SCORES):
        poolings, include_prompt = read_pooling(folder, modules[1], include_prompt=not _is_instructor(folder, config))
        source = str(modules[1].path / "config.json")
        if chain is Chain.POOLED_SCORES and not include_prompt:
            raise ModelError(
                f"'include_prompt' in {source} is false, which is not supported for pairs: a prompt counts in the "
                "pooling; set it to true if the model is asked without prompts"
            )
        return poolings, source, include_prompt
    if chain is Chain.STATIC:
        return ("mean",), "modules.json", True
    default, source, _ = _default_pooling(config)
    return (default,), source, True


def _is_instructor(folder: Path, config: Json) -> bool:
    """Whether it is one of INSTRUCTOR's models. Their code leaves the instruction out of the mean, and their Pooling
    modules do not say so; sentence-transformers knows them by their names, too."""
    repository = folder.parents[1].name if folder.parent.name == "snapshots" else folder.name
    return config.get("model_type") == "t5" and "instructor" in repository.lower()


def is_static(chain: Chain | None, config: Json) -> bool:
    """Whether the model is a table with a row for each token. chain: see engine.model.modules.read_chain."""
    return chain is Chain.STATIC or (chain is None and config.get("model_type") == _MODEL2VEC)


def _without_modules(folder: Path, config: Json, chosen: str | None) -> SentenceFiles:
    if is_static(None, config):
        return SentenceFiles(
            poolings=("mean",),
            pooling_source="config.json: model2vec",
            chain=Chain.STATIC,
            modules=(Module(kind="StaticEmbedding", path=PurePosixPath()),),
            transformer={},
            normalize=bool(config.get("normalize")),
        )
    _, transformer = _transformer_config(folder)
    if config.get(POOLS_TEXT_ALONE):
        return SentenceFiles(
            poolings=(chosen or "mean",),
            pooling_source=_FLAG if chosen else "no file: the model's own code",
            transformer=transformer,
            normalize=True,
            include_prompt=False,
            note="no modules.json: the rows of a text without its prompt's are pooled, and Normalize, as the code does",
        )
    if config.get(POOLS_LAST):
        return SentenceFiles(
            poolings=(chosen or "last",),
            pooling_source=_FLAG if chosen else "no file: the model's own code",
            transformer=transformer,
            normalize=True,
            note="the last token's row is pooled, and Normalize, as the model's own code does",
        )
    rounds = bool(config.get(ROUNDS))
    if chosen:
        return SentenceFiles(poolings=(chosen,), pooling_source=_FLAG, transformer=transformer, rounds=rounds)
    pooling, source, note = _default_pooling(config)
    if has_chat_template(folder):
        note = f"{note}; but it puts each text into the folder's chat template, which is not done here"
    return SentenceFiles(poolings=(pooling,), pooling_source=source, transformer=transformer, rounds=rounds, note=note)


def _default_pooling(config: Json) -> tuple[str, str, str]:
    """The pooling, its source and a note."""
    architectures = config.get("architectures") or [""]
    is_causal = str(architectures[0]).endswith("ForCausalLM") and config.get("is_causal", True)
    pooling = "last" if is_causal else "mean"
    note = f"no modules.json: {pooling} pooling and no Normalize, as sentence-transformers does by default"
    return pooling, "no file: sentence-transformers' default", note


def _transformer_config(folder: Path) -> tuple[str, Json]:
    """The name and content of the file."""
    configs = ((name, read_optional(folder / name)) for name in TRANSFORMER_FILES)
    return next(((name, config) for name, config in configs if config), ("", {}))


def _length_in(options: Json, file: str) -> int | None:
    of_tokenizer = number_in(_given(options, _OF_PROCESSOR), "model_max_length", file=file)
    return of_tokenizer or number_in(options, "max_seq_length", file=file)


def read_length(folder: Path, found: SentenceFiles | None) -> tuple[int | None, str]:
    """The most tokens of a text, None where nothing says them, and the file that does. folder: the Transformer's.
    found: what its modules say. Newer versions of sentence-transformers write the length for the tokenizer alone."""
    if found is not None and found.max_seqlen is not None:
        return found.max_seqlen, found.max_seqlen_source
    config = read_optional(folder / TOKENIZER_CONFIG)
    return number_in(config, "model_max_length", file=TOKENIZER_CONFIG), TOKENIZER_CONFIG


def check_options(options: Json, file: str, *, config: Json, chain: Chain) -> None:
    """Raises ModelError for an option that may change rows, and is not read here. config: config.json as it is."""
    check_known(options, _TRANSFORMER_OPTIONS, file)
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
        raise unread_key_error(name, file)


def _unread(options: Json, chain: Chain) -> Iterator[str]:
    yield from sorted(_given(options, _OF_MODEL).keys() - _HARMLESS_TO_ROWS)
    calls = object_in(options, "processing_kwargs")
    for kind in ("common", "text"):
        yield from sorted(object_in(calls, kind).keys() - _HARMLESS_IN_CALLS)
    of_chats = object_in(calls, "chat_template").items()
    yield from (name for name, value in of_chats if name in _OF_RENDERING or (name == _RESTORES and value is not True))
    roles = () if chain is Chain.LATE else _OF_ROLES
    yield from (name for name in (*roles, "tokenizer_name_or_path") if options.get(name) is not None)


def _given(options: Json, names: tuple[str, str]) -> Json:
    new, old = (object_in(options, name) for name in names)
    return {**new, **old}

"""What sentence-transformers' own files in a model folder say: modules, pooling, length, prompts.

Read as sentence-transformers 6 reads them. Knows nothing of architectures and weights.
"""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.model_json import Json, number_in, object_in, read, read_object, read_optional
from engine.types import ModelError

# as sentence-transformers, TEI and we spell them -> as we spell them
_POOLINGS = {"cls": "cls", "mean": "mean", "lasttoken": "last", "last-token": "last", "last": "last"}
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_FLAG = "--pooling"
_TEXT_TO_TOKEN_ROWS = {"method": "forward", "method_output_name": "last_hidden_state"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceFiles:
    """What is done with the text before the transformer and with the token rows after it."""

    pooling: str  # "cls", "mean" or "last"
    pooling_source: str  # the file or flag that says so
    normalize: bool = False
    include_prompt: bool = True
    do_lower_case: bool = False
    max_seqlen: int | None = None  # tokens; None = not said
    max_seqlen_source: str = ""  # the file that says so
    note: str = ""  # what was assumed, if anything was


def read_modules(folder: Path, config: Json, *, pooling: str | None) -> SentenceFiles:
    """modules.json and what it names; `config` is config.json; `pooling` (cls, mean, last-token) overrules the files.

    Raises ModelError where a module is not supported.
    """
    chosen = _known_pooling(pooling, _FLAG) if pooling else None
    if not (folder / "modules.json").is_file():
        return _without_modules(config, chosen)
    entries = _entries(folder)
    pooling_file = _pooling_file(entries[1])
    pooling_config = read_object(folder / pooling_file)
    transformer_file, transformer = _transformer_config(folder)
    return SentenceFiles(
        pooling=chosen or _pooling_mode(pooling_config),
        pooling_source=_FLAG if chosen else str(pooling_file),
        normalize=len(entries) > 2,
        include_prompt=bool(pooling_config.get("include_prompt", True)),
        do_lower_case=bool(transformer.get("do_lower_case")),
        max_seqlen=number_in(_processor(transformer), "model_max_length") or number_in(transformer, "max_seq_length"),
        max_seqlen_source=transformer_file,
    )


def read_prompts(folder: Path, *, include_prompt: bool) -> tuple[dict[str, str], str | None]:
    """The prompts by name and the name of the default one.

    Raises ModelError where the model has prompts and wants them left out of pooling.
    """
    config = read_optional(folder / "config_sentence_transformers.json")
    kind = config.get("model_type", "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise ModelError(f"config_sentence_transformers.json describes a {kind}; only embedding models are supported")
    prompts = {name: str(prompt) for name, prompt in object_in(config, "prompts").items() if prompt is not None}
    if any(prompts.values()) and not include_prompt:
        raise ModelError("the Pooling module says include_prompt=false, and leaving prompts out is not supported")
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ModelError(f"default_prompt_name {default!r} is not among the model's prompts")
    return prompts, default


def _without_modules(config: Json, chosen: str | None) -> SentenceFiles:
    if chosen:
        return SentenceFiles(pooling=chosen, pooling_source=_FLAG)
    architectures = config.get("architectures") or [""]
    is_causal = str(architectures[0]).endswith("ForCausalLM") and config.get("is_causal", True)
    pooling = "last" if is_causal else "mean"
    note = f"no modules.json: {pooling} pooling and no Normalize, as sentence-transformers does by default"
    return SentenceFiles(pooling=pooling, pooling_source="no file: sentence-transformers' default", note=note)


def _entries(folder: Path) -> list[Json]:
    entries = read(folder / "modules.json")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ModelError("modules.json is not a list of objects")
    kinds = [_kind(entry) for entry in entries]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelError(
            f"modules.json lists {', '.join(kinds) or 'nothing'}; "
            "supported are a Transformer, a Pooling and at most a Normalize, in this order"
        )
    if entries[0].get("path"):
        raise ModelError(f"modules.json has the Transformer in {entries[0]['path']!r}, not in the folder itself")
    return entries


def _kind(entry: Json) -> str:
    """The class name of sentence-transformers' own modules, the full name of any other."""
    name = str(entry.get("type"))
    return name.rpartition(".")[2] if name.startswith("sentence_transformers.") else repr(name)


def _pooling_file(entry: Json) -> PurePosixPath:
    path = PurePosixPath(str(entry.get("path", "")))
    if path.is_absolute() or ".." in path.parts:
        raise ModelError("modules.json has a path that leads out of the folder")
    return path / "config.json"


def _pooling_mode(config: Json) -> str:
    flags = [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
    modes = config.get("pooling_mode") or [_POOLING_FLAGS.get(name, name) for name in flags] or "mean"
    modes = modes if isinstance(modes, list) else [modes]
    if len(modes) > 1:
        raise ModelError(f"the Pooling module joins {' and '.join(map(str, modes))}; one pooling is supported")
    return _known_pooling(str(modes[0]), "the Pooling module")


def _known_pooling(mode: str, where: str) -> str:
    if mode not in _POOLINGS:
        raise ModelError(f"{where} asks for pooling {mode!r}; supported are cls, mean and last-token")
    return _POOLINGS[mode]


def _transformer_config(folder: Path) -> tuple[str, Json]:
    """The name of the file, and what it says."""
    configs = ((name, read_optional(folder / name)) for name in _TRANSFORMER_FILES)
    name, config = next(((name, config) for name, config in configs if config), ("", {}))
    task = config.get("transformer_task", "feature-extraction")
    text = object_in(config, "modality_config").get("text") if "modality_config" in config else _TEXT_TO_TOKEN_ROWS
    if task != "feature-extraction" or text != _TEXT_TO_TOKEN_ROWS:
        raise ModelError("the Transformer module does not turn plain text into token rows, which alone is supported")
    return name, config


def _processor(transformer: Json) -> Json:
    return object_in(transformer, "processor_kwargs") or object_in(transformer, "tokenizer_args")

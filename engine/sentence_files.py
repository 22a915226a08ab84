"""What sentence-transformers' own files in a model folder say: length, prompts, and the modules in one.

Read as sentence-transformers 6 reads them. Knows nothing of architectures and weights; what follows the Transformer is
read by engine.head.modules.
"""

from dataclasses import dataclass
from pathlib import Path

from engine.head.modules import known_pooling, read_chain
from engine.head.steps import Step
from engine.model_json import Json, number_in, object_in, read_optional
from engine.types import ModelError

_TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_FLAG = "--pooling"
_TEXT_TO_TOKEN_ROWS = {"method": "forward", "method_output_name": "last_hidden_state"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceFiles:
    """What is done with the text before the transformer and with the token rows after it."""

    poolings: tuple[str, ...]  # "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "last"; joined in order
    pooling_source: str  # the file or flag that says so
    steps: tuple[Step, ...] = ()  # after the pooling
    normalize: bool = False  # scaled to length 1 in the end
    include_prompt: bool = True
    do_lower_case: bool = False
    max_seqlen: int | None = None  # tokens; None = not said
    max_seqlen_source: str = ""  # the file that says so
    note: str = ""  # what was assumed, if anything was


def read_modules(folder: Path, config: Json, *, pooling: str | None) -> SentenceFiles:
    """modules.json and what it names; `config` is config.json; `pooling` (cls, mean, last-token) overrules the files.

    Raises ModelError where a module is not supported.
    """
    chosen = known_pooling(pooling, _FLAG) if pooling else None
    if not (folder / "modules.json").is_file():
        return _without_modules(config, chosen)
    chain = read_chain(folder, pooling=chosen)
    transformer_file, transformer = _transformer_config(folder)
    return SentenceFiles(
        poolings=chain.poolings,
        pooling_source=_FLAG if chosen else chain.pooling_source,
        steps=chain.steps,
        normalize=chain.normalize,
        include_prompt=chain.include_prompt,
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
        return SentenceFiles(poolings=(chosen,), pooling_source=_FLAG)
    architectures = config.get("architectures") or [""]
    is_causal = str(architectures[0]).endswith("ForCausalLM") and config.get("is_causal", True)
    pooling = "last" if is_causal else "mean"
    note = f"no modules.json: {pooling} pooling and no Normalize, as sentence-transformers does by default"
    return SentenceFiles(poolings=(pooling,), pooling_source="no file: sentence-transformers' default", note=note)


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

"""The facts about one family of code: which files it is, who computes the same, and what each key means to it.

By that, config.json is turned from the words of its own code into those of the architecture that serves it. Keys of
which the user says that they change nothing (--trust-config-key) are passed over.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from engine.model.json_files import Json, object_in
from engine.types import ModelError

# Keys of every configuration that change no row: names, ids that the tokenizer puts in, dropout, training, outputs,
# generation.
# Labels are read by engine.model.detection.scores.
COMMON = frozenset(
    (
        *("_name_or_path", "architectures", "auto_map", "model_type", "transformers_version", "torch_dtype", "dtype"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id", "unk_token_id"),
        *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params"),
        *("initializer_range", "gradient_checkpointing", "use_cache", "return_dict", "tie_word_embeddings"),
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "classifier_dropout"),
        *("output_attentions", "output_hidden_states", "_attn_implementation", "attn_implementation"),
        "_attn_implementation_autoset",
        *("chunk_size_feed_forward", "sentence_transformers", "embedline_template", "use_bfloat16", "torchscript"),
        *("tokenizer_class", "prefix", "max_length", "min_length", "do_sample", "early_stopping", "num_beams"),
        *("num_beam_groups", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty"),
        *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences"),
        *("diversity_penalty", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens"),
        *("forced_bos_token_id", "forced_eos_token_id", "decoder_start_token_id", "remove_invalid_values"),
        *("output_scores", "return_dict_in_generate", "tf_legacy_loss", "cross_attention_hidden_size"),
        *("tie_encoder_decoder", "cls_token", "sep_token", "mask_token_id"),
    )
)
# Keys that change rows in every code that follows transformers' conventions: the values without effect.
USUAL: Mapping[str, tuple[object, ...]] = {
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({},),
}
# in translated configurations: see KnownCode's fields of these names
POOLS_TEXT_ALONE = "embedline_pools_text_alone"
POOLS_LAST = "embedline_pools_last"
ROUNDS = "embedline_rounds"
# likewise, the numbers that a layer `linear` of the weights makes of each row, without a bias
LINEAR = "embedline_linear"
CHUNK_SEPARATOR = "embedline_chunk_separator"  # likewise, the token that stands between the chunks of a document
TRUST = "--trust-config-key"
_WITHOUT_CODE = frozenset(("auto_map", "architectures", "model_type"))


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCode:
    """Python files of one family. A key of config.json that none of the fields names refuses the model."""

    source: str  # what was read: repository, file, commit
    model_types: frozenset[str] = frozenset()  # in config.json; empty = any
    modules: frozenset[str]  # the files, without .py
    repositories: frozenset[str] = frozenset()  # which hold them, where auto_map points to another repository
    chosen_by: Callable[[Json], bool] | None = None  # of config.json; if other code has the same files
    sentence_module: str = ""  # what modules.json calls its Transformer, if that is code too
    rounding_module: str = ""  # likewise, the module that rounds rows: see engine.model.modules.ROUNDING
    architecture: str = ""  # which computes the same: transformers' model_type, or a module of ours
    is_ours: bool = False  # whether that is a module of engine.transformers.models
    layers: str = ""  # transformers' model_type with the same or similar layers; "" = there is none
    classes: Mapping[str, str] = field(default_factory=dict)  # the code's class -> the one that computes the same
    same: frozenset[str] = frozenset()  # keys that mean the same to both
    renamed: Mapping[str, str] = field(default_factory=dict)  # the code's key -> the other's, where a dot leads inside
    fixed: Mapping[str, tuple[object, ...]] = field(default_factory=dict)  # key -> the values that are computed
    without_effect: frozenset[str] = frozenset()  # keys that change no row
    nulls: frozenset[str] = frozenset()  # of `same`: keys whose null is no default
    signs: frozenset[str] = frozenset()  # keys that only this code has: they tell it where auto_map was taken out
    defaults: Json = field(default_factory=dict)  # what the code takes for keys that config.json lacks
    # without modules.json: the mean of the rows of a text without its prompt, scaled to length 1
    pools_text_alone: bool = False
    pools_last: bool = False  # its Transformer alone gives the last token's row, scaled to length 1
    rounds: bool = False  # without modules.json: rows are rounded, see engine.model.modules.ROUNDING
    # The last step: of config.json with the defaults (raw), and of what the fields above make of it (config). May raise
    # ModelError.
    translate: Callable[[Json, Json], Json] | None = None
    instead: str = ""  # if nothing here computes the same: what can be served instead

    def has(self, name: str) -> bool:
        """Whether a name in auto_map, such as owner/repository--modeling.Model, is of these files."""
        repository, _, local = name.rpartition("--")
        return local.partition(".")[0] in self.modules and (not repository or repository in self.repositories)

    @property
    def keys(self) -> frozenset[str]:
        """All keys that are known."""
        return COMMON | USUAL.keys() | self.same | self.renamed.keys() | self.fixed.keys() | self.without_effect


def check_trusted(config: Json, trusted: Collection[str], refused: Collection[str]) -> None:
    """Raises ModelError for a key that would be read, or that has no effect anyway: only refused keys need trust."""
    for key in sorted((config.keys() & set(trusted)) - set(refused)):
        raise ModelError(
            f"{TRUST} {key}: config.json's {key!r} is read or has no effect, so nothing has to be trusted; leave it out"
        )


def translated(code: KnownCode, config: Json, trusted: Collection[str] = ()) -> Json:
    """config.json as the architecture is to read it. trusted: keys that are passed over, which would be refused. Raises
    ModelError with the key that would change rows."""
    refusals = dict(_refusals(code, config))
    check_trusted(config, trusted, refusals)
    for key, why in refusals.items():
        if key not in trusted:
            raise ModelError(why)
    raw = _with_defaults(code, {key: value for key, value in config.items() if key not in trusted})
    made = {key: raw[key] for key in raw.keys() & (COMMON | code.same) - _WITHOUT_CODE}
    for key, other in code.renamed.items():
        if key in raw:
            made = _put(made, other, raw[key], key=key)
    made |= {key: None for key in code.nulls & config.keys() if config[key] is None}
    names = [code.classes.get(name, name) for name in config.get("architectures") or ()]
    made = {**made, "model_type": code.architecture, "architectures": names}
    flags = {POOLS_TEXT_ALONE: code.pools_text_alone, POOLS_LAST: code.pools_last, ROUNDS: code.rounds}
    made = {**made, **{flag: True for flag, is_set in flags.items() if is_set}}
    return code.translate(raw, made) if code.translate else made


def _refusals(code: KnownCode, config: Json) -> Iterator[tuple[str, str]]:
    """Keys that the architecture does not compute, and why each is refused."""
    for key in sorted(config.keys() - code.keys):
        yield (
            key,
            f"{key!r} in config.json may change rows: it is none of the keys that are known of the model's own code "
            f"({code.source}), which is never run; if it changes nothing, say so by {TRUST} {key}",
        )
    raw = _with_defaults(code, config)
    for key, computed in {**USUAL, **code.fixed}.items():
        if raw.get(key) not in (None, *computed):
            yield (
                key,
                f"{key!r} in config.json is {raw[key]!r}, which only the model's own code computes; it is never run, "
                f"and {code.architecture!r} computes {' or '.join(map(repr, computed)) or 'without it'}",
            )


def _with_defaults(code: KnownCode, config: Json) -> Json:
    """config.json without empty keys, and what the code takes where it is silent."""
    raw = {key: value for key, value in config.items() if value is not None}
    left_out = {key: value for key, value in code.defaults.items() if code.renamed.get(key) not in raw}
    return {**left_out, **raw}


def _put(config: Json, name: str, value: object, *, key: str) -> Json:
    """config with the value under `name`, where a dot leads into an object."""
    place, _, last = name.rpartition(".")
    inner = object_in(config, place) if place else config
    if inner.get(last, value) != value:
        raise ModelError(f"{key!r} and {name!r} in config.json mean the same and differ")
    inner = {**inner, last: value}
    return {**config, place: inner} if place else inner

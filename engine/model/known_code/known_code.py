"""What is known of one family of code: which files it is, who computes the same, and what each key means to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.model.json_files import Json

# Keys of every configuration that change no row: names, ids that the tokenizer puts in, dropout, training, outputs,
# generation.
# Labels are read by engine.model.detection.labels.
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

POOLS_TEXT_ALONE = "embedline_pools_text_alone"  # in translated configurations: see KnownCode's field


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCode:
    """Python files of one family. A key of config.json that none of the fields names refuses the model."""

    source: str  # what was read: repository, file, commit
    model_types: frozenset[str] = frozenset()  # in config.json; empty = any
    modules: frozenset[str]  # the files, without .py
    repositories: frozenset[str] = frozenset()  # which hold them, where auto_map points to another repository
    chosen_by: Callable[[Json], bool] | None = None  # of config.json; if other code has the same files
    sentence_module: str = ""  # what modules.json calls its Transformer, if that is code too
    architecture: str = ""  # which computes the same: transformers' model_type, or a module of ours
    is_ours: bool = False  # whether that is a module of engine.transformers.models
    layers: str = ""  # transformers' model_type with the same or similar layers; "" = there is none
    classes: Mapping[str, str] = field(default_factory=dict)  # the code's class -> the one that computes the same
    same: frozenset[str] = frozenset()  # keys that mean the same to both
    renamed: Mapping[str, str] = field(default_factory=dict)  # the code's key -> the other's, where a dot leads inside
    fixed: Mapping[str, tuple[object, ...]] = field(default_factory=dict)  # key -> the values that are computed
    without_effect: frozenset[str] = frozenset()  # keys that change no row
    signs: frozenset[str] = frozenset()  # keys that only this code has: they tell it where auto_map was taken out
    defaults: Json = field(default_factory=dict)  # what the code takes for keys that config.json lacks
    # without modules.json: the mean of the rows of a text without its prompt, scaled to length 1
    pools_text_alone: bool = False
    # The last step: of config.json with the defaults, and what the fields above make of it. May raise ModelError.
    translate: Callable[[Json, Json], Json] | None = None
    instead: str = ""  # if nothing here computes the same: what can be served instead

    def has(self, name: str) -> bool:
        """Whether a name in auto_map, such as owner/repository--modeling.Model, is of these files."""
        repository, _, local = name.rpartition("--")
        return local.partition(".")[0] in self.modules and (not repository or repository in self.repositories)

    @property
    def keys(self) -> frozenset[str]:
        """All that are known."""
        return COMMON | USUAL.keys() | self.same | self.renamed.keys() | self.fixed.keys() | self.without_effect

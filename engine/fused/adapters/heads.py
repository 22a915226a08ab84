"""The heads of transformers' classes, as data: what their layers are and what the checkpoint calls their tensors.

Which class serves a head is decided by the architecture, as transformers' automatic classes decide it. Each function
here says what such a class computes from the last hidden states, as transformers' modeling files have it; dropout is
left out, for it does nothing in service. A head that is not known here is refused, and transformers serves it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from transformers import PretrainedConfig

from engine.fused.adapters.adapter import Recipe, Recipes, activation_of, affine, beside, require
from engine.fused.offer import NotForFused
from engine.model.tasks import (
    AnswerScore,
    ScoreHead,
    ScoreLayer,
    SequenceScores,
    TokenScores,
    TransformersHead,
    VocabularyWeights,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedHead:
    """A head in our terms. It has either `scores` or the vocabulary's matrix."""

    layouts: tuple[Recipes, ...]  # the first with all its names in the checkpoint is used
    scores: ScoreHead | None = None
    vocabulary_activation: str | None = None  # see engine.fused.model.spec
    # Names in the checkpoint, beside the base model, of tensors that the layouts read under another name, too.
    twins: frozenset[str] = frozenset()


def adapt(head: TransformersHead, config: PretrainedConfig, words: Recipe) -> AdaptedHead:
    """words: how the embedding table is read. Raises NotForFused for a head that is not known."""
    kind, model_type = type(head), config.model_type
    match head:
        case SequenceScores(labels=labels) if maker := _OF_SEQUENCES.get(model_type):
            return maker(config, len(labels))
        case TokenScores(labels=labels) if maker := _OF_TOKENS.get(model_type):
            return maker(config, len(labels))
        case AnswerScore() if model_type in _DECODERS:
            return _answer_score(head, config, words)
        case VocabularyWeights() if masked := _OF_VOCABULARIES.get(model_type):
            return masked(config, words)
    called = (config.architectures or [f"{model_type}'s class"])[0]
    raise NotForFused(f"the fused engine does not know how {called} computes {_PURPOSES[kind]}")


_PURPOSES: dict[type[TransformersHead], str] = {
    SequenceScores: "scores of sequences",
    TokenScores: "scores of tokens",
    AnswerScore: "scores of the next token",
    VocabularyWeights: "scores of its vocabulary",
}


def _two_layers(
    config: PretrainedConfig,
    num_labels: int,
    *,
    first: str = "classifier.dense",
    second: str = "classifier.out_proj",
    activation: str = "tanh",
    is_pooler: bool = False,
) -> AdaptedHead:
    """A layer with an activation and one for the labels, of the first token. is_pooler: whether the first layer is a
    part of the base model."""
    dense, out = affine({"head.0": (first,)}), affine({"head.1": (second,)})
    layers = ScoreLayer(size=config.hidden_size, activation=activation), ScoreLayer(size=num_labels)
    recipes = (dense if is_pooler else beside(dense)) | beside(out)
    return AdaptedHead(layouts=(recipes,), scores=ScoreHead(layers=layers, pooling="cls"))


_pooler = partial(_two_layers, first="pooler.dense", second="classifier", is_pooler=True)


def _modernbert(config: PretrainedConfig, num_labels: int, *, pooling: str | None) -> AdaptedHead:
    recipes = affine({"head.0": ("head.dense",)}, has_bias=config.classifier_bias)
    recipes |= affine({"head.0.norm": ("head.norm",)}, has_bias=config.norm_bias) | affine({"head.1": ("classifier",)})
    activation = activation_of(config.classifier_activation)
    dense = ScoreLayer(size=config.hidden_size, activation=activation, norm_eps=config.norm_eps)
    scores = ScoreHead(layers=(dense, ScoreLayer(size=num_labels)), pooling=pooling)
    return AdaptedHead(layouts=(beside(recipes),), scores=scores)


def _modernbert_of_sequences(config: PretrainedConfig, num_labels: int) -> AdaptedHead:
    require(config, classifier_pooling=("cls", "mean"))
    return _modernbert(config, num_labels, pooling=config.classifier_pooling)


def _eurobert(config: PretrainedConfig, num_labels: int) -> AdaptedHead:
    require(config, classifier_pooling=("bos", "mean", "late"))
    is_late = config.classifier_pooling == "late"  # scores of each token, and then their mean
    scores = ScoreHead(
        layers=(ScoreLayer(size=config.hidden_size, activation="gelu"), ScoreLayer(size=num_labels)),
        pooling="cls" if config.classifier_pooling == "bos" else "mean",
        num_before_mean=2 if is_late else 0,
    )
    return AdaptedHead(layouts=(beside(affine({"head.0": ("dense",), "head.1": ("classifier",)})),), scores=scores)


def _decoder(config: PretrainedConfig, num_labels: int) -> AdaptedHead:
    """transformers' GenericForSequenceClassification: the last token that is not the padding's."""
    scores = ScoreHead(layers=(ScoreLayer(size=num_labels),), pooling="last", padding_id=config.pad_token_id)
    return AdaptedHead(layouts=(beside(affine({"head.0": ("score",)}, has_bias=False)),), scores=scores)


def _llama_bidirec(config: PretrainedConfig, num_labels: int) -> AdaptedHead:
    """See engine.transformers.models.nvidia."""
    layer = ScoreLayer(size=num_labels)
    scores = ScoreHead(layers=(layer,), pooling="mean", temperature=config.score_temperature)
    return AdaptedHead(layouts=(beside(affine({"head.0": ("score",)}, has_bias=False)),), scores=scores)


def _of_tokens(_: PretrainedConfig, num_labels: int, *, name: str) -> AdaptedHead:
    layer = ScoreLayer(size=num_labels)
    return AdaptedHead(layouts=(beside(affine({"head.0": (name,)})),), scores=ScoreHead(layers=(layer,)))


def _answer_score(head: AnswerScore, config: PretrainedConfig, words: Recipe) -> AdaptedHead:
    """The rows of the answers in a generative model's last layer, which is often the embedding table."""
    ids = (head.yes_id,) if head.no_id is None else (head.yes_id, head.no_id)
    recipes = [Recipe(("lm_head.weight",), is_beside=True, rows=ids)]
    if config.tie_word_embeddings:
        recipes.append(Recipe(words.parts, rows=ids))
    scores = ScoreHead(
        layers=(ScoreLayer(size=len(ids)),),
        pooling="last",
        softcap=config.final_logit_softcapping if config.model_type in _CAPPED else None,
        is_difference=head.no_id is not None,
    )
    return AdaptedHead(layouts=tuple({"head.0.weight": recipe} for recipe in recipes), scores=scores)


def _masked(
    config: PretrainedConfig,
    words: Recipe,
    *,
    dense: str = "lm_head.dense",
    norm: str = "lm_head.layer_norm",
    matrix: str = "lm_head.decoder",
    twin: str = "",
    activation: str = "",
) -> AdaptedHead:
    """A dense layer with an activation, a norm, and the matrix. twin: a second name of the matrix's bias. activation:
    the key of the configuration that names it; "" = exact GELU."""
    before = affine({"vocabulary.dense": (dense,), "vocabulary.norm": (norm,)})
    ours = activation_of(getattr(config, activation)) if activation else "gelu"
    return _over_words(config, words, before, activation=ours, matrix=matrix, twin=twin)


def _masked_gte(config: PretrainedConfig, words: Recipe) -> AdaptedHead:
    """The authors' own code has another name for the norm."""
    head, old = _masked(config, words), _masked(config, words, norm="lm_head.norm")
    return dataclasses.replace(head, layouts=head.layouts + old.layouts)


def _masked_modernbert(config: PretrainedConfig, words: Recipe) -> AdaptedHead:
    before = affine({"vocabulary.dense": ("head.dense",)}, has_bias=config.classifier_bias)
    before |= affine({"vocabulary.norm": ("head.norm",)}, has_bias=config.norm_bias)
    activation = activation_of(config.classifier_activation)
    return _over_words(config, words, before, activation=activation, matrix="decoder", has_bias=config.decoder_bias)


def _masked_eurobert(config: PretrainedConfig, words: Recipe) -> AdaptedHead:
    return _over_words(config, words, {}, activation=None, matrix="lm_head", has_bias=config.mlp_bias)


def _over_words(
    config: PretrainedConfig,
    words: Recipe,
    before: Recipes,
    *,
    activation: str | None,
    matrix: str,
    twin: str = "",
    has_bias: bool = True,
) -> AdaptedHead:
    """The matrix behind other layers.

    Where the configuration ties it to the embedding table, and its bias to the twin, a checkpoint may have either or
    both. Of two with other numbers, transformers computes with the layer's own, so that comes first.
    """
    is_tied = config.tie_word_embeddings
    weights = [Recipe((f"{matrix}.weight",), is_beside=True), *([words] if is_tied else [])]
    biases = [Recipe((name,), is_beside=True) for name in (f"{matrix}.bias", *([twin] if twin and is_tied else []))]
    scores: list[Recipes] = [
        {"vocabulary.words.weight": weight} | ({} if bias is None else {"vocabulary.words.bias": bias})
        for weight in weights
        for bias in (biases if has_bias else [None])
    ]
    layouts = tuple(beside(before) | own for own in scores)
    return AdaptedHead(layouts=layouts, vocabulary_activation=activation, twins=frozenset((twin,)) - {""})


_ROBERTAS = ("roberta", "xlm-roberta", "camembert", "data2vec-text", "mpnet", "jina_embeddings_v3")
_ENCODERS = (*_ROBERTAS, "bert", "ernie", "electra", "albert", "distilbert", "nomic_bert", "gte")
_CAPPED = ("gemma2", "gemma3_text")
_DECODERS = ("llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "phi3", "smollm3", "gemma", *_CAPPED)

_OF_SEQUENCES: Mapping[str, Callable[[PretrainedConfig, int], AdaptedHead]] = {
    **dict.fromkeys((*_ROBERTAS, "xlm-roberta-flash"), _two_layers),
    **dict.fromkeys(("bert", "ernie", "nomic_bert", "gte"), _pooler),
    **dict.fromkeys(_DECODERS, _decoder),
    "albert": partial(_pooler, first="pooler"),
    "electra": partial(_two_layers, activation="gelu"),
    "distilbert": partial(_two_layers, first="pre_classifier", second="classifier", activation="relu"),
    "modernbert": _modernbert_of_sequences,
    "eurobert": _eurobert,
    "llama_bidirec": _llama_bidirec,
}
_OF_TOKENS: Mapping[str, Callable[[PretrainedConfig, int], AdaptedHead]] = {
    **dict.fromkeys((*_ENCODERS, "eurobert"), partial(_of_tokens, name="classifier")),
    **dict.fromkeys(set(_DECODERS) - {"gemma3_text"}, partial(_of_tokens, name="score")),
    "modernbert": partial(_modernbert, pooling=None),
}
_TRANSFORM = "cls.predictions.transform"
_bert = partial(
    _masked,
    dense=f"{_TRANSFORM}.dense",
    norm=f"{_TRANSFORM}.LayerNorm",
    matrix="cls.predictions.decoder",
    twin="cls.predictions.bias",
    activation="hidden_act",
)
_GENERATOR = "generator_predictions"
_OF_VOCABULARIES: Mapping[str, Callable[[PretrainedConfig, Recipe], AdaptedHead]] = {
    **dict.fromkeys(_ROBERTAS, partial(_masked, twin="lm_head.bias")),
    **dict.fromkeys(("bert", "ernie"), _bert),
    "nomic_bert": partial(_bert, norm=f"{_TRANSFORM}.layer_norm"),
    "albert": partial(
        _masked,
        dense="predictions.dense",
        norm="predictions.LayerNorm",
        matrix="predictions.decoder",
        twin="predictions.bias",
        activation="hidden_act",
    ),
    "electra": partial(
        _masked, dense=f"{_GENERATOR}.dense", norm=f"{_GENERATOR}.LayerNorm", matrix="generator_lm_head"
    ),
    "distilbert": partial(
        _masked, dense="vocab_transform", norm="vocab_layer_norm", matrix="vocab_projector", activation="activation"
    ),
    "gte": _masked_gte,
    "modernbert": _masked_modernbert,
    "eurobert": _masked_eurobert,
}

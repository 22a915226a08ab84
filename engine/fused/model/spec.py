"""A model of the two families without its weights: plain numbers that fit into JSON. Knows no tensors.

Weights go by these names, whatever the checkpoint calls them. h hidden size, N query heads, H key heads, D numbers a
head, I intermediate size, V words, P positions, K token types, R buckets of distances.

    words [V, h]   positions [P, h]   types [K, h]   embedding_norm.weight/bias [h]    (what a model lacks is not there)
    projection.weight [h, E]: where words, positions and types have E numbers (ELECTRA); projection.bias [h]
    layers.3.qkv.weight [(N + 2 H) D, h]: queries, then keys, then values; layers.3.qkv.bias
    layers.3.o.weight [h, N D]   layers.3.gate_up.weight [I, h], or [2 I, h]: gate, then up
    layers.3.down.weight [h, I]
    layers.3.query_norm.weight, layers.3.key_norm.weight [D]: RMS norms of each head
    layers.3.attention_norm, layers.3.mlp_norm: "bert": after attention, after the MLP; "llama": before each
    embedding_norm: "llama" (ModernBERT): takes the place of layers.0.attention_norm
    layers.3.after_attention_norm, layers.3.after_mlp_norm: "llama" with `sandwich_norms`, of what is added
    final_norm.weight/bias [h]
    rope.0 [P, rotated]: float32, cosines then sines of half as many angles each; `LayerSpec.rope` is the number
    query_rope.0 [P, rotated]: of queries alone, where they are scaled by their position (Ministral 3)
    relative_bias [N, 2 R + 1]: float32, added to scores by key's position - query's, clamped to -R … R
    head.0.weight [its size, h]   head.0.bias   head.0.norm.weight, .bias: float32; those of `ScoreHead.layers`
    vocabulary.dense.weight [E, h], .bias   vocabulary.norm.weight, .bias [E]: what precedes the scores of words
    vocabulary.words.weight [V, E]: often words itself   vocabulary.words.bias [V]

RMS norms' weights are what rows are multiplied by (Gemma's files hold that minus one). Norms' weights are float32."""

from dataclasses import dataclass

from engine.model.tasks import ScoreHead


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """The facts that differ from layer to layer."""

    window: int | None = None  # a token sees those fewer than this many tokens away; None = all
    rope: int | None = None  # number of the table of angles; None = queries and keys are not rotated


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One model; see wire.dataclass_json for a file."""

    architecture: str  # model_type of config.json
    family: str  # "bert": norms follow what they normalise; "llama": they precede it
    hidden_size: int
    num_heads: int  # of queries
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    num_positions: int = 0  # rows of the table of positions; 0 = there is none
    num_types: int = 0  # rows of the table of token types; 0 = there is none
    embedding_size: int | None = None  # numbers a row of these tables, where a projection follows; None = hidden_size
    activation: str  # "silu", "gelu" (exact), "gelu_tanh", "relu"
    is_gated: bool  # the activated half of `gate_up` is multiplied by the other
    norm: str  # "layer" or "rms"
    norm_eps: float
    is_causal: bool
    scaling: float  # of scores, before softmax
    softcap: float | None = None  # scores are squeezed into -softcap … softcap
    embedding_scale: float = 1.0  # words are multiplied by it
    sandwich_norms: bool = False  # what attention and MLP give is normalised before it is added
    has_final_norm: bool = False
    layers: tuple[LayerSpec, ...] = ()
    head: ScoreHead | None = None  # of a model for scores
    vocabulary_activation: str | None = None  # behind vocabulary.dense; None = the model has no such layer

    @property
    def q_size(self) -> int:
        """Numbers in a row of queries."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Numbers in a row of keys, and in one of values."""
        return self.num_kv_heads * self.head_dim

    @property
    def num_linear_parameters(self) -> int:
        """Parameters in the layers' matrix products, without embeddings."""
        mlp = (3 if self.is_gated else 2) * self.intermediate_size
        return len(self.layers) * self.hidden_size * (2 * self.q_size + 2 * self.kv_size + mlp)


def shape_of(spec: Spec, name: str) -> tuple[int, ...] | None:
    """The shape of a tensor by our name; None if the Spec does not say."""
    if name.startswith("head."):
        return _shape_in_head(spec, name)
    *_, stem, kind = ("", *name.split("."))
    if stem.endswith("norm") and kind in ("weight", "bias"):
        return (_width(spec, stem),)
    shape = _tables(spec).get(name) or linear_shapes(spec).get(stem)
    return shape[:1] if shape and kind == "bias" else shape


def _shape_in_head(spec: Spec, name: str) -> tuple[int, ...]:
    assert spec.head is not None
    _, number, *kind = name.split(".")
    sizes = (spec.hidden_size, *(layer.size for layer in spec.head.layers))
    taken, given = sizes[int(number) : int(number) + 2]
    return (given, taken) if kind == ["weight"] else (given,)


def _width(spec: Spec, norm: str) -> int:
    if norm in ("query_norm", "key_norm"):
        return spec.head_dim
    is_narrow = norm in ("embedding_norm", "norm")  # the second is that of the vocabulary
    return _embedding_size(spec) if is_narrow else spec.hidden_size


def _tables(spec: Spec) -> dict[str, tuple[int, ...]]:
    width = _embedding_size(spec)
    return {
        "words": (spec.vocab_size, width),
        "positions": (spec.num_positions, width),
        "types": (spec.num_types, width),
        "vocabulary.words.weight": (spec.vocab_size, width),
        "vocabulary.words.bias": (spec.vocab_size,),
    }


def linear_shapes(spec: Spec) -> dict[str, tuple[int, int]]:
    """The shapes of linear layers' weights, by the last part of their names."""
    hidden = spec.hidden_size
    return {
        "projection": (hidden, _embedding_size(spec)),
        "qkv": (spec.q_size + 2 * spec.kv_size, hidden),
        "o": (hidden, spec.q_size),
        "gate_up": (spec.intermediate_size * (2 if spec.is_gated else 1), hidden),
        "down": (hidden, spec.intermediate_size),
        "dense": (_embedding_size(spec), hidden),  # before the scores of words
    }


def _embedding_size(spec: Spec) -> int:
    return spec.hidden_size if spec.embedding_size is None else spec.embedding_size

"""Tasks, heads and the modules after the pooling, as plain data, with the activations of raw scores.

They are found in a model's folder without torch. Nothing here reads a file or computes; each engine computes them in
its own way.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, assert_never

from engine.types import ModelError, OutputKind
from wire.pairs import ChatPairs

POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "last")  # what comes before the modules
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")  # torch's names, with their default arguments
LAYER_NORM_EPSILON = 1e-5  # torch's default, which sentence-transformers uses
NORMALIZE_FLOOR = 1e-12  # torch's default; a row of zeros stays zero
Shapes = dict[str, tuple[int, ...]]  # of a module's tensors, by name
TOKEN_WEIGHTS_FILE = "sparse_linear.safetensors"


class Task(enum.StrEnum):
    """A model's main purpose. Its outputs decide which requests it answers, see ModelFolder.outputs."""

    EMBED = "embed"
    RERANK = "rerank"  # one score for a pair of texts, or for a text alone (reward models)
    CLASSIFY = "classify"  # a score for each label
    TOKEN_CLASSIFY = "token-classify"  # a score for each label, of each token
    SPARSE = "sparse"  # weights of vocabulary entries
    LATE_INTERACTION = "late-interaction"  # a row for each token, compared by MaxSim


class Activation(enum.StrEnum):
    """Turns raw scores, which engines give, into scores for clients."""

    IDENTITY = "identity"
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """activation(row @ weight.T + bias). has_residual: plus the row, which is projected if the sizes differ."""

    folder: str  # the module's, in the model's folder; or the file with its tensors
    in_features: int
    out_features: int
    has_bias: bool = True
    activation: str = "Tanh"  # of ACTIVATIONS
    has_residual: bool = False

    @property
    def shapes(self) -> Shapes:
        """The shapes of its tensors in torch's layout."""
        projection = (self.out_features, self.in_features)
        found: Shapes = {"linear.weight": projection}
        if self.has_bias:
            found["linear.bias"] = (self.out_features,)
        if self.has_residual and self.in_features != self.out_features:
            found["residual.weight"] = projection
        return found

    @property
    def is_file(self) -> bool:
        """Whether `folder` is a file. Tensors in it may also be called weight and bias."""
        return self.folder.endswith(".safetensors")

    @property
    def source(self) -> str:
        """The file that describes the step."""
        return self.folder if self.is_file else f"{self.folder}/config.json"

    def __str__(self) -> str:
        extras = ", residual" if self.has_residual else ""
        return f"Dense {self.in_features} to {self.out_features}, {self.activation}{extras} ({self.source})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    """torch's nn.LayerNorm over the row."""

    is_file: ClassVar[bool] = False  # see Dense
    folder: str
    size: int

    @property
    def shapes(self) -> Shapes:
        """The shapes of its tensors."""
        return {"norm.weight": (self.size,), "norm.bias": (self.size,)}

    @property
    def source(self) -> str:
        """The file that describes the step."""
        return f"{self.folder}/config.json"

    def __str__(self) -> str:
        return f"LayerNorm ({self.source})"


@dataclass(frozen=True, slots=True)
class Normalize:
    """Scales the row to length 1, before further steps."""

    def __str__(self) -> str:
        return "Normalize (modules.json)"


Step = Dense | LayerNorm | Normalize


def output_size(steps: Iterable[Step], size: int) -> int:
    """The size of a row after all steps. Raises ModelError if a step does not fit the size before it."""
    for step in steps:
        match step:
            case Dense(in_features=taken, out_features=given) | LayerNorm(size=taken as given):
                if taken != size:
                    raise ModelError(f"{step.source} needs rows of {taken} numbers, but gets {size}")
                size = given
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceScores:
    """transformers' …ForSequenceClassification: one raw score for each label."""

    output: ClassVar[OutputKind] = OutputKind.LOGITS
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledScores:
    """A cross-encoder of modules: the raw score is the pooled row after all steps, the last of which leaves one
    number."""

    output: ClassVar[OutputKind] = OutputKind.LOGITS
    labels: ClassVar[tuple[str, ...]] = ("LABEL_0",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """transformers' …ForTokenClassification: one raw score for each label and token."""

    output: ClassVar[OutputKind] = OutputKind.TOKEN_LOGITS
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerScore:
    """A generative model's next token: the raw score of yes minus that of no."""

    output: ClassVar[OutputKind] = OutputKind.LOGITS
    yes_id: int
    no_id: int | None  # None = only the raw score of yes


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyWeights:
    """SPLADE: maximum or sum over the tokens of a masked language model's scores after an activation."""

    output: ClassVar[OutputKind] = OutputKind.SPARSE
    pooling: str = "max"  # or "sum"
    activation: str = "relu"  # followed by log1p; or "log1p_relu": followed by log1p twice


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenVectors:
    """ColBERT: each token's row after these steps, scaled to length 1 if `normalize`."""

    output: ClassVar[OutputKind] = OutputKind.MULTI_VECTOR
    steps: tuple[Step, ...]
    dimensions: int
    normalize: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWeights:
    """bge-m3's sparse head: relu(row @ weight.T + bias), the largest for each token id.

    Reads sparse_linear.safetensors: weight [1, D], bias [1].
    """

    output: ClassVar[OutputKind] = OutputKind.SPARSE
    unused_ids: tuple[int, ...]  # special tokens, which never have a weight

    @staticmethod
    def step(hidden_size: int) -> Dense:
        """The layer that computes a weight from a token's row."""
        return Dense(folder=TOKEN_WEIGHTS_FILE, in_features=hidden_size, out_features=1, activation="ReLU")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreLayer:
    """activation(row @ weight.T + bias), and then a norm where it has one. All in float32."""

    size: int  # numbers that it gives
    activation: str = "identity"  # "identity", "tanh", "relu", "silu", "gelu" (exact) or "gelu_tanh"
    norm_eps: float | None = None  # of a layer norm behind the activation; None = there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreHead:
    """How raw scores are computed from hidden states: layers, of which the last has a number for each score."""

    layers: tuple[ScoreLayer, ...]
    pooling: str | None = None  # "cls", "last" or "mean"; None = the scores are those of each token
    # With "last": it is the last token that has another id, as the library's decoders choose it, or the first token
    # where a sequence has no other. None = the very last.
    padding_id: int | None = None
    num_before_mean: int = 0  # layers that each token's hidden state goes through before the mean
    softcap: float | None = None  # scores are squeezed into -softcap … softcap
    temperature: float = 1.0  # scores are divided by it
    is_difference: bool = False  # whether the score is the first number less the second


# Heads that transformers has a class for. A model has at most one of them.
TransformersHead = SequenceScores | TokenScores | AnswerScore | VocabularyWeights


Head = TransformersHead | PooledScores | TokenVectors | TokenWeights


def head_in_words(head: Head) -> str:
    """A head in one line, for people."""
    match head:
        case SequenceScores(labels=labels):
            return f"a score for each of {len(labels)} labels" if len(labels) > 1 else "one score"
        case PooledScores():
            return "one score, of the pooled row"
        case TokenScores(labels=labels):
            return f"a score for each of {len(labels)} labels, of each token"
        case AnswerScore(yes_id=yes_id, no_id=no_id):
            return f"next token {yes_id}" + (f" against {no_id}" if no_id is not None else ", raw")
        case VocabularyWeights(pooling=pooling, activation=activation):
            return f"weights of vocabulary entries: {activation}, {pooling} over the tokens"
        case TokenWeights(unused_ids=ids):
            return f"weights of tokens, without {len(ids)} special ones"
        case TokenVectors(steps=steps, dimensions=dimensions):
            names = [step.folder for step in steps if isinstance(step, Dense | LayerNorm)]
            return f"a row of {dimensions} for each token" + (f" ({', '.join(names)})" if names else "")
        case _:
            assert_never(head)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTemplate:
    """The prompt of a generative reranker.

    {query}, {document} and {instruction} are filled in. Each part is tokenized separately, without special tokens other
    than those spelled out, and the ids are joined. If they are too many, the part with {document} is cut at its end. A
    part with only {instruction} is left out if the instruction is empty.
    """

    parts: tuple[str, ...] = ()
    instruction: str  # if the request has none; may be empty
    chat: ChatPairs | None = None  # the parts are those of the folder's chat template


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """A table with a weight for each token id of a query, for models that compute only documents."""

    folder: str  # in the model's folder, with its model.safetensors
    surrounding_ids: tuple[int, ...] = ()  # special tokens around a text; they have no weight there


@dataclass(frozen=True, slots=True, kw_only=True)
class LateInteraction:
    """How a late-interaction model treats queries and documents."""

    query_marker_id: int | None = None  # inserted into a query; the next one for documents
    document_marker_id: int | None = None
    marks_text_start: bool = False  # a marker stands behind all leading special tokens, else behind the first token
    query_length: int | None = None  # tokens to which a query is cut, or filled up with `expansion_id`; None = neither
    expansion_id: int | None = None  # None = queries are not filled up
    expansion_length: int | None = None  # tokens to which a short query is filled up; None = query_length
    attends_to_expansion: bool = False  # whether other tokens attend to the filled-in ones
    document_length: int | None = None  # tokens to which a document is cut; None = the model's limit
    skipped_ids: tuple[int, ...] = ()  # tokens of a document whose rows do not count
    skips_first: bool = False  # the first token's row counts neither in a query nor in a document

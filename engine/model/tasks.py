"""Tasks and heads of models, and activations of raw scores, as plain data.

Found in a model's folder without torch. Each engine computes heads in its own way.
"""

import enum
from dataclasses import dataclass
from typing import ClassVar, assert_never

from engine.model.steps import Dense, LayerNorm, Step
from engine.types import OutputKind

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
class SequenceScores:
    """transformers' …ForSequenceClassification: one raw score for each label."""

    output: ClassVar[OutputKind] = OutputKind.LOGITS
    labels: tuple[str, ...]


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


# Heads that transformers has a class for. A model has at most one of them.
TransformersHead = SequenceScores | TokenScores | AnswerScore | VocabularyWeights
Head = TransformersHead | TokenVectors | TokenWeights


def head_in_words(head: Head) -> str:
    """A head in one line, for people."""
    match head:
        case SequenceScores(labels=labels):
            return f"a score for each of {len(labels)} labels" if len(labels) > 1 else "one score"
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

    parts: tuple[str, ...]
    instruction: str  # if the request has none; may be empty


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """A table with a weight for each token id of a query, for models that compute only documents."""

    folder: str  # in the model's folder, with its model.safetensors
    surrounding_ids: tuple[int, ...] = ()  # special tokens around a text; they have no weight there


@dataclass(frozen=True, slots=True, kw_only=True)
class LateInteraction:
    """How a late-interaction model treats queries and documents."""

    query_marker_id: int | None = None  # inserted after the first token of a query; the next one for documents
    document_marker_id: int | None = None
    query_length: int | None = None  # tokens to which a query is cut, or filled up with `expansion_id`; None = neither
    expansion_id: int | None = None  # None = queries are not filled up
    attends_to_expansion: bool = False  # whether other tokens attend to the filled-in ones
    document_length: int | None = None  # tokens to which a document is cut; None = the model's limit
    skipped_ids: tuple[int, ...] = ()  # tokens of a document whose rows do not count
    skips_first: bool = False  # the first token's row counts neither in a query nor in a document

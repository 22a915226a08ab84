"""What models do beside giving one row for a text, as plain data: tasks, heads, and what the edge does with raw scores.

Read from a model's folder without torch; how a head is computed is each engine's.
"""

import enum
from dataclasses import dataclass

from engine.model.steps import Dense, Step

TOKEN_WEIGHTS_FILE = "sparse_linear.safetensors"


class Task(enum.StrEnum):
    """What a model is for. Which requests it answers follows from its outputs, see ModelFolder.outputs."""

    EMBED = "embed"
    RERANK = "rerank"  # one score for a pair of texts; a reward model, too, where a text alone is scored
    CLASSIFY = "classify"  # a score for each label
    TOKEN_CLASSIFY = "token-classify"  # a score for each label, of each token
    SPARSE = "sparse"  # weights of vocabulary entries
    LATE_INTERACTION = "late-interaction"  # a row for each token, compared by MaxSim


class Activation(enum.StrEnum):
    """What makes scores of raw ones, at the edge; raw ones are what engines give."""

    IDENTITY = "identity"
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceScores:
    """transformers' …ForSequenceClassification: one raw score a label. Gives LOGITS."""

    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """transformers' …ForTokenClassification: one raw score a label for each token. Gives TOKEN_LOGITS."""

    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerScore:
    """A generative model's next token: raw score yes, less raw score no. Two rows of its vocabulary. Gives LOGITS."""

    yes_id: int
    no_id: int | None  # None = the raw score of yes alone


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyWeights:
    """SPLADE: the masked language model's scores, a maximum or sum over the tokens. Gives SPARSE."""

    pooling: str = "max"  # or "sum"
    activation: str = "relu"  # then log1p; or "log1p_relu", which is log1p twice


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenVectors:
    """ColBERT: each token's row through these steps, scaled to length 1. Gives MULTI_VECTOR."""

    steps: tuple[Step, ...]
    dimensions: int
    normalize: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWeights:
    """bge-m3's sparse head: relu(row @ weight.T + bias), the largest for each token id. Gives SPARSE.

    Reads sparse_linear.safetensors: weight [1, D], bias [1].
    """

    unused_ids: tuple[int, ...]  # special tokens, which never have a weight

    @staticmethod
    def step(hidden_size: int) -> Dense:
        """What makes a weight of a token's row."""
        return Dense(folder=TOKEN_WEIGHTS_FILE, in_features=hidden_size, out_features=1, activation="ReLU")


Head = SequenceScores | TokenScores | AnswerScore | VocabularyWeights | TokenVectors | TokenWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTemplate:
    """How a generative reranker is asked.

    Each part is tokenized on its own, without special tokens but those spelled out, and the ids are joined. {query},
    {document} and {instruction} are put in; where all is too long, the part with {document} is cut at its end. A part
    with {instruction} alone is left out where that is empty.
    """

    parts: tuple[str, ...]
    instruction: str  # where the request gives none; may be empty


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """How queries become sparse where documents alone go through the model: a weight for each of their token ids."""

    folder: str  # of its model.safetensors, within the model's
    surrounding_ids: tuple[int, ...] = ()  # which the tokenizer puts around a text; as its first or last, they are none


@dataclass(frozen=True, slots=True, kw_only=True)
class LateInteraction:
    """What a late-interaction model does with queries and documents."""

    query_marker_id: int | None = None  # put after the first token of a query, as the next of a document
    document_marker_id: int | None = None
    query_length: int | None = None  # tokens that a query is cut or filled up to, with `expansion_id`; None = neither
    expansion_id: int | None = None  # None = queries are not filled up
    attends_to_expansion: bool = False  # whether other tokens see those that were filled in
    document_length: int | None = None  # tokens that a document is cut to; None = as long as the model takes
    skipped_ids: tuple[int, ...] = ()  # whose rows do not count in a document
    skips_first: bool = False  # the first token's row counts neither in a query nor in a document

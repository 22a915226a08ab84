"""The operations that the forwards use, and their arguments: a batch's inputs, tiles, norms, tables.

Two implementations: `reference` in plain torch, which says what each op means; `kernels` in Triton, which are fast.

Shapes: T tokens and B sequences, both padded: what lies behind the batch's own is padding. Padded token ids and
positions are 0, padded sequences are empty, padded tiles have no queries. No tile covers a padded token, and nothing
else mixes tokens, so their rows may hold anything. h is the numbers a row.

Where sequences begin alike, a common beginning has one row for all of them: of T tokens U have rows, and `places` says
which row is whose. All that knows one token at a time computes U rows. Attention takes queries as they are, since tiles
say where a query stands, and keys and values gathered to T, where each sequence has all of its own side by side.
Elsewhere U is T.

Arithmetic is float32 inside each op; results have the dtype of what went in, unless an op says otherwise. Every op
works row by row (attention: tile by tile), so a row that holds NaN spoils no other.
"""

import enum
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

TILE_FIELDS = 6


@dataclass(frozen=True, slots=True)
class Tiles:
    """Who attends to whom: each row is up to `block` queries in a row, all of one sequence.

    Its numbers: the first query's row in the tensor of queries, the number of queries, the first query's position in
    its sequence, the row of the sequence's first key, the number of its keys, the number of the sequence in the batch.
    Keys are the sequence's tokens from the first on; all of them but for hidden ones at the end, which none attends to.
    """

    table: Tensor  # int32 [N, TILE_FIELDS]
    block: int  # queries a tile at most: 16, 32, 64 or 128


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything a forward needs to know of its batch."""

    token_ids: Tensor  # int32 [U]
    positions: Tensor  # int32 [U]: row of the tables of positions and angles
    token_type_ids: Tensor | None  # int32 [U]; None = all zero
    cu_seqlens: Tensor  # int32 [B + 1], of T tokens
    pooled: Tensor  # int32 [B]: the row that stands for each sequence (pooling cls and last); 0 where padded
    tiles: Tiles  # queries are all rows
    pooled_tiles: Tiles  # queries are the B pooled rows
    places: Tensor | None = None  # int32 [T]: the row of each token; negative where padded. None = each has its own


MAX_HEAD_DIM = 256  # numbers a head; what kernels can take
MAX_WIDTH = 16_384  # numbers of a row that is normalised; likewise


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Rows in float8_e4m3fn; row i is values[i] * scales[i], with the largest magnitude of a row at 448."""

    values: Tensor  # float8_e4m3fn [T, h]
    scales: Tensor  # float32 [T, 1]; 1 for a row of zeros


Rows = Tensor | QuantizedRows


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer norm or RMS norm."""

    kind: str  # "layer" or "rms"
    weight: Tensor  # float32 [h]
    bias: Tensor | None  # float32 [h]; None for "rms", and for some of the others
    eps: float


class NormOutputs(enum.Flag):
    """The outputs of `add_norm`. One that nobody reads is not written to memory."""

    RESIDUAL = enum.auto()  # residual + hidden, before the norm
    ROWS = enum.auto()  # normalised
    QUANTIZED = enum.auto()  # the same, quantized out of float32


@dataclass(frozen=True, slots=True)
class NormedRows:
    """The outputs that were asked for; None for the others."""

    residual: Tensor | None  # [T, h]
    rows: Tensor | None  # [T, h]
    quantized: QuantizedRows | None


@dataclass(frozen=True, slots=True)
class EmbeddingTables:
    """Rows that are looked up and added."""

    words: Tensor  # [V, h]
    positions: Tensor | None  # [P, h]
    types: Tensor | None  # [K, h]
    scale: float  # of words


@dataclass(frozen=True, slots=True)
class RaggedRows:
    """SPARSE rows: each sequence's entries that are not zero, one sequence behind the other, ids ascending."""

    counts: Tensor  # int32 [B]
    entries: Tensor  # float32 [N, 2], an id and its weight; only the first counts.sum() are filled, if N is enough


@dataclass(frozen=True, slots=True)
class WordScores:
    """The matrix that scores all words of the vocabulary, and what is made of a sequence's largest scores."""

    words: Tensor  # [V, h], in the dtype of rows
    bias: Tensor | None  # [V]
    is_log_twice: bool  # log1p once more


@dataclass(frozen=True, slots=True)
class Heads:
    """How the numbers of a row of queries and keys are shared out; what follows them in the row is left alone."""

    num_query_heads: int
    num_key_heads: int
    head_dim: int  # D
    query_norm: Norm | None  # of each head's D numbers
    key_norm: Norm | None


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """How the tokens of one sequence see each other."""

    is_causal: bool
    scaling: float
    window: int | None = None  # a token sees those fewer than this many tokens away
    softcap: float | None = None
    relative_bias: Tensor | None = None  # float32 [N, 2 R + 1], see engine.fused.model.spec


class Ops(Protocol):
    """See the module's docstring. Kernels never synchronise with the host, so all can be captured in a graph."""

    def embed(self, inputs: Inputs, tables: EmbeddingTables) -> Tensor:
        """[T, h] in the dtype of the tables: words * scale + positions + types (row 0 where inputs has none)."""

    def add_norm(
        self,
        hidden: Tensor,  # [T, h]
        residual: Tensor | None,  # [T, h]; None = 0
        norm: Norm,
        *,
        hidden_norm: Norm | None = None,  # of hidden, before it is added (Gemma's norms after attention and MLP)
        outputs: NormOutputs = NormOutputs.RESIDUAL | NormOutputs.ROWS,
    ) -> NormedRows:
        """The sum and its norm. Sums are rounded to the dtype of hidden before they are normalised. A total that is
        hidden itself is no copy."""

    def rotate(self, rows: Tensor, positions: Tensor, angles: Tensor | None, heads: Heads) -> None:
        """Change rows in place [T, >= (query heads + key heads) * D]: norms of heads, then rotation.

        angles: float32 [P, rotated], rotated <= D: cosines of rotated / 2 angles, then their sines. Of a head's first
        `rotated` numbers, number i and i + rotated / 2 are a pair, turned by angle i (the order of rotate_half in
        transformers). None = no rotation.
        """

    def activate(self, rows: Tensor, activation: str, *, is_gated: bool, is_quantized: bool) -> Rows:
        """[T, I] of [T, I], or of [T, 2 I] where gated: activation(first half) * second half."""

    def quantize(self, rows: Tensor) -> QuantizedRows:
        """Quantizes each row with its own scale."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, tiles: Tiles, rule: AttentionRule) -> Tensor:
        """[Q, N, D] of query [Q, N, D], key and value [T, H, D], N a multiple of H; strided views are fine, with
        adjacent numbers of a head. Rows that no tile covers hold anything."""

    def gather(self, rows: Tensor, places: Tensor) -> Tensor:
        """[T, h] of rows [U, h]: those at `places`, int32 [T]; anything where these are negative."""

    def pool(self, rows: Tensor, cu_seqlens: Tensor) -> Tensor:
        """float32 [B, h]: the mean of each sequence's rows; 0 of an empty one."""

    def vocabulary_weights(self, hidden: Tensor, scores: WordScores, tiles: Tiles, cu_seqlens: Tensor) -> RaggedRows:
        """log1p(relu(largest score of each word over a sequence's tokens)), where it is not zero; NaN is not.

        tiles: of all tokens. The product with the matrix is not rounded to the dtype of hidden.
        """

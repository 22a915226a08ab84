"""Makes what a batch asks for out of the last hidden states, on the device: a tensor for each kind of output.

What a model's files have beside its layers is loaded here: the modules after the pooling, late interaction's vectors,
bge-m3's weights of tokens, a table of queries. Heads for scores are among the model's weights (`Spec.head`).

Shapes: T tokens, U of them with a row (see engine.fused.model.ops) and B sequences, with padding; h numbers of a hidden
state.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.fused.model.forwards import Blocks, forward_of
from engine.fused.model.ops import Inputs, NormOutputs, RaggedRows, WordScores
from engine.fused.packing import ROWS_OF_SEQUENCES, Shape, views
from engine.model.model_folder import ModelFolder
from engine.model.tasks import TokenVectors, TokenWeights, VocabularyWeights
from engine.rows.heads import Scorer, Vectors, load_vectors
from engine.rows.query_table import QueryTable, query_table
from engine.rows.with_torch import RowModules, load_modules
from engine.types import OutputKind


@dataclass(frozen=True, slots=True)
class Modules:
    """The parts of a model that stand in files of their own."""

    after_pooling: RowModules = field(default_factory=RowModules)
    vectors: Vectors | None = None
    token_weights: RowModules | None = None
    unused_ids: tuple[int, ...] = ()  # tokens whose weights are left out
    queries: QueryTable | None = None


def load_modules_of(folder: ModelFolder, device: torch.device) -> Modules:
    """Raises ModelError where a file has not what config.json or the file beside it says."""
    vectors: Vectors | None = None
    token_weights: RowModules | None = None
    unused_ids: tuple[int, ...] = ()
    for head in folder.heads:
        match head:
            case TokenVectors():
                vectors = load_vectors(folder.path, head, hidden_size=folder.hidden_size, device=device)
            case TokenWeights():
                token_weights = load_modules(folder.path, [head.step(folder.hidden_size)], device=device)
                unused_ids = head.unused_ids
    after_pooling = load_modules(folder.path, folder.steps, device=device)
    return Modules(after_pooling, vectors, token_weights, unused_ids, query_table(folder))


class ModelCompute:
    """See engine.fused.runner.Compute."""

    def __init__(
        self, blocks: Blocks, modules: Modules, *, pooling: str, words: VocabularyWeights | None = None
    ) -> None:
        """pooling: "cls", "mean" or "last", of embeddings, or of the scores of sequences; words: of a model for them"""
        self._blocks = blocks
        self._forward = forward_of(blocks)
        self._modules = modules
        self._pooling = pooling
        self._scorer = None if blocks.spec.head is None else Scorer(blocks.spec.head, blocks.tensors_of("head."))
        matrix = blocks.tensors_of("vocabulary.words.")
        is_log_twice = words is not None and words.activation == "log1p_relu"
        self._words = WordScores(matrix["weight"], matrix.get("bias"), is_log_twice) if matrix else None

    def __call__(self, block: Tensor, shape: Shape) -> dict[OutputKind, Tensor | RaggedRows]:
        """Rows of tokens in the model's dtype where they are its hidden states, those of sequences too unless they are
        means, scores, or made by a module."""
        inputs = views(block, shape)
        is_pruned = shape.outputs in ROWS_OF_SEQUENCES and self._pooling != "mean"
        hidden = self._forward(inputs, is_pruned=is_pruned)
        return {kind: self._output(kind, hidden, inputs, is_pruned=is_pruned) for kind in shape.outputs}

    def _output(self, kind: OutputKind, hidden: Tensor, inputs: Inputs, *, is_pruned: bool) -> Tensor | RaggedRows:
        """hidden: [U, h], or [B, h] of the pooled rows where pruned."""
        match kind:
            case OutputKind.TOKENS:
                return self._of_tokens(hidden, inputs)
            case OutputKind.POOLED:
                return self._modules.after_pooling(self._pooled(hidden, inputs, is_pruned=is_pruned))
            case OutputKind.LOGITS if (scorer := self._scorer) is not None:
                if self._pooling == "mean":
                    hidden = scorer.before_mean(hidden)
                return scorer(self._pooled(hidden, inputs, is_pruned=is_pruned))
            case OutputKind.LOGITS:  # PooledScores
                return self._modules.after_pooling(self._pooled(hidden, inputs, is_pruned=is_pruned))
            case OutputKind.TOKEN_LOGITS if self._scorer is not None:
                return self._of_tokens(self._scorer(hidden), inputs)
            case OutputKind.MULTI_VECTOR if self._modules.vectors is not None:
                return self._of_tokens(self._modules.vectors(hidden), inputs)
            case OutputKind.SPARSE if self._modules.token_weights is not None:
                return self._modules.token_weights(hidden)
            case OutputKind.SPARSE if self._words is not None:
                return self._weights_of_words(hidden, inputs, self._words)
        raise AssertionError(kind)

    def _pooled(self, hidden: Tensor, inputs: Inputs, *, is_pruned: bool) -> Tensor:
        """[B, h]"""
        if is_pruned:
            return hidden
        if self._pooling == "mean":
            return self._blocks.ops.pool(self._of_tokens(hidden, inputs), inputs.cu_seqlens)
        return hidden.index_select(0, inputs.pooled)

    def _of_tokens(self, rows: Tensor, inputs: Inputs) -> Tensor:
        """[T, …] of [U, …]"""
        return rows if inputs.places is None else self._blocks.ops.gather(rows, inputs.places)

    def _weights_of_words(self, hidden: Tensor, inputs: Inputs, words: WordScores) -> RaggedRows:
        blocks, activation = self._blocks, self._blocks.spec.vocabulary_activation
        if activation is not None:
            dense = blocks.linear("vocabulary.dense", hidden)
            activated = blocks.ops.activate(dense, activation, is_gated=False, is_quantized=False)
            assert isinstance(activated, Tensor)
            normed = blocks.ops.add_norm(activated, None, blocks.norm("vocabulary.norm"), outputs=NormOutputs.ROWS)
            assert normed.rows is not None
            hidden = normed.rows
        return blocks.ops.vocabulary_weights(hidden, words, inputs.tiles, inputs.cu_seqlens)

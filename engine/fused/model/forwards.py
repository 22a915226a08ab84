"""The two forwards: norms after what they normalise (BERT and similar models), or before it (Llama and similar models).

Both return the last hidden states of all tokens, or of the pooled tokens alone. In the second case the last layer
computes keys and values for all tokens and everything else for the pooled ones: the same rows for less work.

Shapes: T tokens, B sequences, h hidden size.
"""

from torch import Tensor

from engine.fused.model.blocks import Blocks, linear_input
from engine.fused.model.ops import Inputs, NormedRows, NormOutputs


class Forward:
    """One model."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._num_layers = len(blocks.spec.layers)

    def __call__(self, inputs: Inputs, *, is_pruned: bool) -> Tensor:
        """The last hidden states: [T, h], or [B, h] of `inputs.pooled` where pruned."""
        raise NotImplementedError

    def _attended(
        self, layer: int, normed: NormedRows, residual: Tensor, inputs: Inputs, *, is_pruned: bool
    ) -> tuple[Tensor, Tensor]:
        """What attention gives, and what it is added to: [T, h], or [B, h] of `inputs.pooled` where pruned."""
        rows = linear_input(normed)
        if is_pruned:
            return self._blocks.pooled_attention(layer, rows, inputs), residual.index_select(0, inputs.pooled)
        return self._blocks.attention(layer, rows, inputs), residual


class BertForward(Forward):
    """x = norm(embeddings); for each layer: x = norm(x + attention(x)), x = norm(x + mlp(x))."""

    def __call__(self, inputs: Inputs, *, is_pruned: bool) -> Tensor:
        normed = self._embed(inputs)
        for layer in range(self._num_layers):
            normed = self._layer(layer, normed, inputs, is_pruned=is_pruned and layer == self._num_layers - 1)
        assert normed.rows is not None
        return normed.rows

    def _embed(self, inputs: Inputs) -> NormedRows:
        blocks = self._blocks
        has_projection = blocks.has("projection")
        normed = blocks.ops.add_norm(
            blocks.embed(inputs),
            None,
            blocks.norm("embedding_norm"),
            outputs=NormOutputs.ROWS if has_projection else self._rows_for("layers.0.qkv"),
        )
        if not has_projection:
            return normed
        assert normed.rows is not None
        rows = blocks.linear("projection", normed.rows)
        return NormedRows(None, rows, None)

    def _layer(self, layer: int, normed: NormedRows, inputs: Inputs, *, is_pruned: bool) -> NormedRows:
        blocks, name = self._blocks, f"layers.{layer}"
        assert normed.rows is not None
        attended, residual = self._attended(layer, normed, normed.rows, inputs, is_pruned=is_pruned)
        between = blocks.ops.add_norm(
            attended, residual, blocks.norm(f"{name}.attention_norm"), outputs=self._rows_for(f"{name}.gate_up")
        )
        is_last = layer + 1 == self._num_layers
        return blocks.ops.add_norm(
            blocks.mlp(layer, linear_input(between)),
            between.rows,
            blocks.norm(f"{name}.mlp_norm"),
            outputs=NormOutputs.ROWS if is_last else self._rows_for(f"layers.{layer + 1}.qkv"),
        )

    def _rows_for(self, linear: str) -> NormOutputs:
        """What the next sum adds to, and what this linear layer takes."""
        return NormOutputs.ROWS | NormOutputs.QUANTIZED if self._blocks.is_quantized(linear) else NormOutputs.ROWS


class LlamaForward(Forward):
    """For each layer: x += attention(norm(x)), x += mlp(norm(x)); then norm(x)."""

    def __call__(self, inputs: Inputs, *, is_pruned: bool) -> Tensor:
        normed = self._embed(inputs)
        for layer in range(self._num_layers - 1):
            residual, hidden = self._layer(layer, normed, inputs, is_pruned=False)
            normed = self._add_norm(
                hidden,
                residual,
                f"layers.{layer + 1}.attention_norm",
                f"layers.{layer}.after_mlp_norm",
                f"layers.{layer + 1}.qkv",
            )
        last = self._num_layers - 1
        residual, hidden = self._layer(last, normed, inputs, is_pruned=is_pruned)
        rows = self._add_norm(hidden, residual, "final_norm", f"layers.{last}.after_mlp_norm", None).rows
        assert rows is not None
        return rows

    def _embed(self, inputs: Inputs) -> NormedRows:
        blocks = self._blocks
        embedded = blocks.embed(inputs)
        if not blocks.has("embedding_norm"):
            return self._add_norm(embedded, None, "layers.0.attention_norm", None, "layers.0.qkv")
        quantized = NormOutputs.QUANTIZED if blocks.is_quantized("layers.0.qkv") else NormOutputs(0)
        normed = blocks.ops.add_norm(
            embedded, None, blocks.norm("embedding_norm"), outputs=NormOutputs.ROWS | quantized
        )
        return NormedRows(normed.rows, normed.rows, normed.quantized)

    def _layer(self, layer: int, normed: NormedRows, inputs: Inputs, *, is_pruned: bool) -> tuple[Tensor, Tensor]:
        """The sum so far, and what the MLP adds to it."""
        blocks, name = self._blocks, f"layers.{layer}"
        assert normed.residual is not None
        attended, residual = self._attended(layer, normed, normed.residual, inputs, is_pruned=is_pruned)
        between = self._add_norm(
            attended, residual, f"{name}.mlp_norm", f"{name}.after_attention_norm", f"{name}.gate_up"
        )
        assert between.residual is not None
        return between.residual, blocks.mlp(layer, linear_input(between))

    def _add_norm(
        self, hidden: Tensor, residual: Tensor | None, norm: str, hidden_norm: str | None, linear: str | None
    ) -> NormedRows:
        """The sum, and rows as the linear layer takes them; without one, only plain rows."""
        blocks = self._blocks
        outputs = NormOutputs.ROWS
        if linear is not None:
            outputs = NormOutputs.RESIDUAL | (NormOutputs.QUANTIZED if blocks.is_quantized(linear) else outputs)
        return blocks.ops.add_norm(
            hidden,
            residual,
            blocks.norm(norm),
            hidden_norm=blocks.norm(hidden_norm) if hidden_norm and blocks.has(hidden_norm) else None,
            outputs=outputs,
        )


def forward_of(blocks: Blocks) -> Forward:
    """By the model's family."""
    return BertForward(blocks) if blocks.spec.family == "bert" else LlamaForward(blocks)

"""The two forwards: norms after what they normalise (BERT and similar models), or before it (Llama and similar models).

Both return the last hidden states of all rows, or of the pooled ones alone. In the second case the last layer computes
keys and values for all rows and everything else for the pooled ones: the same rows for less work. `Blocks` is what both
share: embedding, attention, MLP. It keeps weights and ops, and knows nothing of batches.

Shapes: T tokens, U of them with a row (see engine.fused.model.ops), B sequences, h hidden size, N query heads, H key
heads, D numbers a head. T, U and B count padding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.fused.model.linear import Linear, PlainLinear
from engine.fused.model.ops import (
    AttentionRule,
    EmbeddingTables,
    Heads,
    Inputs,
    Norm,
    NormedRows,
    NormOutputs,
    Ops,
    QuantizedRows,
    Rows,
)
from engine.fused.model.spec import Spec

_GELUS = ("gelu", "gelu_tanh")  # whose difference is less than what rounding to 16 bits makes


@dataclass(slots=True)
class Weights:
    """Weights by their names in spec.py. Linear layers can be exchanged for quantized ones; forwards see it at once."""

    tensors: Mapping[str, Tensor]  # all but the linear layers' own
    linears: dict[str, Linear] = field(default_factory=dict)  # "layers.0.qkv", …


class Blocks:
    """A model's parts, ready to be called."""

    def __init__(self, spec: Spec, weights: Weights, ops: Ops) -> None:
        self.spec = spec
        self.ops = ops
        self._weights = weights
        norms = [name.removesuffix(".weight") for name in weights.tensors if name.endswith("norm.weight")]
        norms = [name for name in norms if not name.startswith("head.")]  # whose layers have norms of their own
        self._norms = {name: self._norm(name) for name in norms}
        tables = weights.tensors
        self._tables = EmbeddingTables(
            tables["words"], tables.get("positions"), tables.get("types"), spec.embedding_scale
        )

    def tensors_of(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin so, by the rest of their names."""
        tensors = self._weights.tensors
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    def norm(self, name: str) -> Norm:
        """The norm of this name, such as "layers.0.attention_norm"."""
        return self._norms[name]

    def has(self, name: str) -> bool:
        """Whether the model has this norm or linear layer."""
        return name in self._norms or name in self._weights.linears

    def is_quantized(self, name: str) -> bool:
        """Whether this linear layer takes quantized rows."""
        return self._weights.linears[name].is_quantized

    def embed(self, inputs: Inputs) -> Tensor:
        """[U, h], before any norm; [U, E] where a projection to h follows the norm."""
        return self.ops.embed(inputs, self._tables)

    def linear(self, name: str, rows: Rows) -> Tensor:
        """The product; plain rows are quantized first where that is what the layer takes."""
        linear = self._weights.linears[name]
        return linear(self._quantized_for(linear, rows))

    def attention(self, layer: int, rows: Rows, inputs: Inputs) -> Tensor:
        """[U, h] of normalised rows [U, h]."""
        spec = self.spec
        qkv = self.linear(f"layers.{layer}.qkv", rows)
        self._rotate(layer, qkv, inputs.positions, num_query=spec.num_heads, num_key=spec.num_kv_heads)
        query = qkv[:, : spec.q_size].view(len(qkv), spec.num_heads, spec.head_dim)
        key, value = self._keys_and_values(qkv[:, spec.q_size :], inputs.places)
        attended = self.ops.attend(query, key, value, inputs.tiles, self._rule(layer))
        return self.linear(f"layers.{layer}.o", attended.reshape(len(qkv), spec.q_size))

    def pooled_attention(self, layer: int, rows: Rows, inputs: Inputs) -> Tensor:
        """[B, h] of normalised rows [U, h]: what `attention` gives for the pooled rows, computed for these alone."""
        spec = self.spec
        qkv = self._weights.linears[f"layers.{layer}.qkv"]
        rows = self._quantized_for(qkv, rows)
        pooled = inputs.pooled
        query = qkv.part(0, spec.q_size)(rows_at(rows, pooled))
        key_value = qkv.part(spec.q_size, spec.q_size + 2 * spec.kv_size)(rows)
        self._rotate(layer, query, inputs.positions.index_select(0, pooled), num_query=spec.num_heads, num_key=0)
        self._rotate(layer, key_value, inputs.positions, num_query=0, num_key=spec.num_kv_heads)
        key, value = self._keys_and_values(key_value, inputs.places)
        query = query.view(len(query), spec.num_heads, spec.head_dim)
        attended = self.ops.attend(query, key, value, inputs.pooled_tiles, self._rule(layer))
        return self.linear(f"layers.{layer}.o", attended.reshape(len(query), spec.q_size))

    def mlp(self, layer: int, rows: Rows) -> Tensor:
        """[rows, h] of normalised rows."""
        spec, down = self.spec, f"layers.{layer}.down"
        gate_up = self._weights.linears[f"layers.{layer}.gate_up"]
        is_gelu = spec.activation in _GELUS and not spec.is_gated
        if is_gelu and isinstance(gate_up, PlainLinear) and gate_up.can_gelu:
            assert isinstance(rows, Tensor)
            return self.linear(down, gate_up.gelu(rows))
        activated = self.ops.activate(
            gate_up(self._quantized_for(gate_up, rows)),
            spec.activation,
            is_gated=spec.is_gated,
            is_quantized=self.is_quantized(down),
        )
        return self.linear(down, activated)

    def _quantized_for(self, linear: Linear, rows: Rows) -> Rows:
        if linear.is_quantized and isinstance(rows, Tensor):
            return self.ops.quantize(rows)
        return rows

    def _rotate(self, layer: int, rows: Tensor, positions: Tensor, *, num_query: int, num_key: int) -> None:
        query_norm = self._norms.get(f"layers.{layer}.query_norm")
        key_norm = self._norms.get(f"layers.{layer}.key_norm")
        rope = self.spec.layers[layer].rope
        if rope is None and query_norm is None and key_norm is None:
            return
        tables, size = self._weights.tensors, self.spec.head_dim
        angles = None if rope is None else tables[f"rope.{rope}"]
        of_queries = tables.get(f"query_rope.{rope}")
        if num_query and of_queries is not None:
            self.ops.rotate(rows, positions, of_queries, Heads(num_query, 0, size, query_norm, None))
            rows, num_query = rows[:, num_query * size :], 0
        if num_query or num_key:
            self.ops.rotate(rows, positions, angles, Heads(num_query, num_key, size, query_norm, key_norm))

    def _keys_and_values(self, rows: Tensor, places: Tensor | None) -> tuple[Tensor, Tensor]:
        """Views [T, H, D], of rows [U, 2 H D]."""
        if places is not None:
            rows = self.ops.gather(rows, places)
        both = rows.view(len(rows), 2 * self.spec.num_kv_heads, self.spec.head_dim)
        return both[:, : self.spec.num_kv_heads], both[:, self.spec.num_kv_heads :]

    def _rule(self, layer: int) -> AttentionRule:
        spec = self.spec
        bias = self._weights.tensors.get("relative_bias")
        return AttentionRule(spec.is_causal, spec.scaling, spec.layers[layer].window, spec.softcap, bias)

    def _norm(self, name: str) -> Norm:
        tensors = self._weights.tensors
        is_of_head = name.endswith(("query_norm", "key_norm"))
        kind = "rms" if is_of_head else self.spec.norm
        return Norm(kind, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"), self.spec.norm_eps)


def rows_at(rows: Rows, index: Tensor) -> Rows:
    """The rows of these numbers, int32 or int64 [B]."""
    if isinstance(rows, QuantizedRows):
        as_bytes = rows.values.view(torch.uint8)  # index_select knows no float8
        values = as_bytes.index_select(0, index).view(rows.values.dtype)
        return QuantizedRows(values, rows.scales.index_select(0, index))
    return rows.index_select(0, index)


def linear_input(normed: NormedRows) -> Rows:
    """The input of a linear layer, made of these rows."""
    if normed.quantized is not None:
        return normed.quantized
    assert normed.rows is not None
    return normed.rows


class FusedForward:
    """The forward of one family; subclasses are called."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._num_layers = len(blocks.spec.layers)

    def __call__(self, inputs: Inputs, *, is_pruned: bool) -> Tensor:
        """The last hidden states: [U, h], or [B, h] of `inputs.pooled` where pruned."""
        raise NotImplementedError

    def _attended(
        self, layer: int, normed: NormedRows, residual: Tensor, inputs: Inputs, *, is_pruned: bool
    ) -> tuple[Tensor, Tensor]:
        """The output of attention, and what it is added to: [U, h], or [B, h] of `inputs.pooled` where pruned."""
        rows = linear_input(normed)
        if is_pruned:
            return self._blocks.pooled_attention(layer, rows, inputs), residual.index_select(0, inputs.pooled)
        return self._blocks.attention(layer, rows, inputs), residual


class BertForward(FusedForward):
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
            outputs=NormOutputs.ROWS if has_projection else self._outputs_for("layers.0.qkv"),
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
            attended, residual, blocks.norm(f"{name}.attention_norm"), outputs=self._outputs_for(f"{name}.gate_up")
        )
        is_last = layer + 1 == self._num_layers
        return blocks.ops.add_norm(
            blocks.mlp(layer, linear_input(between)),
            between.rows,
            blocks.norm(f"{name}.mlp_norm"),
            outputs=NormOutputs.ROWS if is_last else self._outputs_for(f"layers.{layer + 1}.qkv"),
        )

    def _outputs_for(self, linear: str) -> NormOutputs:
        """The outputs of a norm before this linear layer: rows that the next sum adds to, and the layer's input."""
        return NormOutputs.ROWS | NormOutputs.QUANTIZED if self._blocks.is_quantized(linear) else NormOutputs.ROWS


class LlamaForward(FusedForward):
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


def forward_of(blocks: Blocks) -> FusedForward:
    """The forward of the model's family."""
    return BertForward(blocks) if blocks.spec.family == "bert" else LlamaForward(blocks)

"""BERT, which numbers no positions of its own, and upstream's classifier on it."""

from typing import Any

import torch
from torch import nn

from tensorrt_llm._torch.model_config import ModelConfig
from tensorrt_llm._torch.models.modeling_utils import register_auto_model
from tensorrt_llm._torch.modules.embedding import Embedding
from tensorrt_llm._torch.modules.linear import Linear
from tensorrt_llm.stand_in.attention import Attention
from tensorrt_llm.stand_in.interface import AttentionMetadata, PredefinedAttentionMask


class MLP(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.fc1 = Linear(hidden_size, intermediate_size)
        self.fc2 = Linear(intermediate_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.fc2(nn.functional.gelu(self.fc1(x)))
        return rows


class BertEmbeddings(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = Embedding(config.type_vocab_size, config.hidden_size)
        self.embedding_ln = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self, input_ids: torch.Tensor, token_type_ids: torch.Tensor, position_ids: torch.Tensor
    ) -> torch.Tensor:
        rows = self.word_embeddings(input_ids) + self.position_embeddings(position_ids)
        normed: torch.Tensor = self.embedding_ln(rows + self.token_type_embeddings(token_type_ids))
        return normed


class BertEncoderLayer(nn.Module):
    def __init__(self, model_config: ModelConfig, layer_idx: int) -> None:
        super().__init__()
        config = model_config.pretrained_config
        self.self_attn = Attention(
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_attention_heads,
            max_position_embeddings=config.max_position_embeddings,
            bias=True,
            layer_idx=layer_idx,
            config=model_config,
        )
        self.mlp = MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor, attn_metadata: AttentionMetadata) -> torch.Tensor:
        attended = self.self_attn(
            position_ids=None,
            hidden_states=hidden_states,
            attn_metadata=attn_metadata,
            attention_mask=PredefinedAttentionMask.FULL,
        )
        hidden_states = self.input_layernorm(hidden_states + attended)
        rows: torch.Tensor = self.post_layernorm(self.mlp(hidden_states) + hidden_states)
        return rows


class BertPooler(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor, attn_metadata: AttentionMetadata) -> torch.Tensor:
        lengths = attn_metadata.seq_lens_cuda
        assert lengths is not None
        first = torch.cumsum(lengths, dim=0, dtype=torch.long) - lengths
        return torch.tanh(self.dense(hidden_states[first]))


class BertModel(nn.Module):
    def __init__(self, model_config: ModelConfig, add_pooling_layer: bool = True) -> None:
        super().__init__()
        config = model_config.pretrained_config
        self.model_config = model_config
        self.embedding = BertEmbeddings(config)
        self.layers = nn.ModuleList(BertEncoderLayer(model_config, index) for index in range(config.num_hidden_layers))
        self.pooler = BertPooler(config) if add_pooling_layer else None

    def forward(
        self,
        attn_metadata: AttentionMetadata,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor,
        position_ids: torch.Tensor,
    ) -> torch.Tensor:
        rows: torch.Tensor = self.embedding(input_ids, token_type_ids, position_ids)
        for layer in self.layers:
            rows = layer(rows, attn_metadata)
        return rows if self.pooler is None else self.pooler(rows, attn_metadata)


@register_auto_model("BertForSequenceClassification")
class BertForSequenceClassification(nn.Module):
    def __init__(self, model_config: ModelConfig) -> None:
        super().__init__()
        self.model_config = model_config
        config = model_config.pretrained_config
        self.model = BertModel(model_config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    @property
    def config(self) -> Any:
        return self.model_config.pretrained_config

    def infer_max_seq_len(self) -> int:
        return int(self.config.max_position_embeddings)

    def load_weights(self, weights: Any) -> None:
        """Needs the names of a whole BERT, and computes in float16 afterwards."""
        for name, module in self.named_modules():
            if not module._parameters:
                continue
            parts = [
                {kind: weights[f"{part}.{kind}"] for kind in ("weight", "bias") if f"{part}.{kind}" in weights}
                for part in _in_files(name)
            ]
            if hasattr(module, "load_weights"):
                module.load_weights(weights=parts)
                continue
            for kind, parameter in module.named_parameters(recurse=False):
                parameter.data.copy_(parts[0][kind][:])
        self.half()

    @torch.inference_mode()
    def forward(
        self,
        attn_metadata: AttentionMetadata,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        assert position_ids is not None
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        position_ids = position_ids.flatten()
        assert input_ids.shape == types.shape == position_ids.shape
        pooled = self.model(
            attn_metadata=attn_metadata, input_ids=input_ids, token_type_ids=types, position_ids=position_ids
        )
        logits: torch.Tensor = self.classifier(pooled)
        return logits.float()


_RENAMED = (
    ("self_attn.qkv_proj", ("attention.self.query", "attention.self.key", "attention.self.value")),
    ("self_attn.o_proj", ("attention.output.dense",)),
    ("input_layernorm", ("attention.output.LayerNorm",)),
    ("post_layernorm", ("output.LayerNorm",)),
    ("mlp.fc1", ("intermediate.dense",)),
    ("mlp.fc2", ("output.dense",)),
)


def _in_files(name: str) -> list[str]:
    name = name.replace("model.embedding.", "bert.embeddings.").replace("embedding_ln", "LayerNorm")
    name = name.replace("model.layers.", "bert.encoder.layer.").replace("model.pooler.", "bert.pooler.")
    for ours, parts in _RENAMED:
        if name.endswith(ours):
            return [name.replace(ours, part) for part in parts]
    return [name]
